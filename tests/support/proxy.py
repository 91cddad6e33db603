"""Stands between a client and a PostgreSQL server, and does to what passes what networks do.

A proxy listens on a free port of the loopback address and runs on an event loop in a thread of its own, so
that blocking and asynchronous clients of the same process can use it. Its settings may be changed any time.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from enum import Enum
from typing import Any, Self, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

R = TypeVar("R")

_CHUNK = 65_536
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Way(Enum):
    """Where bytes go."""

    TO_SERVER = "to the server"
    TO_CLIENT = "to the client"

    @property
    def back(self) -> Way:
        """The other one."""
        return Way.TO_CLIENT if self is Way.TO_SERVER else Way.TO_SERVER


class Proxy:
    """Listens for clients of the server at a URL, until the block is left."""

    def __init__(self, server_url: str) -> None:
        self._server_url = urlsplit(server_url)
        self._options = dict(parse_qsl(self._server_url.query))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    def url(self, of: str | None = None) -> str:
        """The URL of the server, or of a database or store on it, by way of this proxy."""
        parts = self._server_url if of is None else urlsplit(of)
        options = {name: value for name, value in parse_qsl(parts.query) if name not in {"host", "port"}}
        user = f"{parts.username}@" if parts.username else ""
        place = f"{user}127.0.0.1:{self.port}"
        return urlunsplit(parts._replace(netloc=place, query=urlencode(options)))

    async def to_server(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the server."""
        host = self._options.get("host", self._server_url.hostname or "")
        port = self._server_url.port or int(self._options.get("port", 5432))
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client, up to its end."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._thread.start()
        self._listening = self._on_loop(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.port = self._listening.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._on_loop(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self.serve(reader, writer)
        except (OSError, EOFError, asyncio.CancelledError):
            pass  # one side has gone, or this proxy ends
        finally:
            self._tasks.discard(task)
            abort(writer)

    async def _end(self) -> None:
        self._listening.close()
        for task in (tasks := list(self._tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.ended()

    async def ended(self) -> None:
        """The proxy ends: let go of what clients do not have."""

    def _on_loop(self, work: Coroutine[Any, Any, R]) -> R:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def abort(writer: asyncio.StreamWriter, *, reset: bool = False) -> None:
    """Close a connection at once. reset: the other side hears of it by an error, not by an end."""
    connection = writer.get_extra_info("socket")
    if reset and connection is not None and connection.family != socket.AF_UNIX:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    # One whose connection is lost already has no loop to say so on.
    with contextlib.suppress(AttributeError):
        writer.transport.abort()


class _Link:
    """A client's connection and the one to the server that was made for it."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.ends = {Way.TO_CLIENT: client, Way.TO_SERVER: server}
        self.loses_next_reply = self.is_swallowed = False
        self.said = bytearray()
        self.ended: set[Way] = set()

    def cut(self, *, reset: bool) -> None:
        for end in self.ends.values():
            abort(end, reset=reset)

    async def finish(self) -> None:
        """Cut it, once the bytes that were let through are on their way."""
        for end in self.ends.values():
            end.close()
        for end in self.ends.values():
            with contextlib.suppress(OSError):
                await end.wait_closed()


class FaultProxy(Proxy):
    """Passes everything on, until it is told otherwise.

    delay_s: so long it holds back each piece. swallows: what goes these ways is lost, without a word.
    drip_s: pass one byte at a time, so far apart. refuses: new connections are reset.
    passed: bytes that went each way so far.
    """

    def __init__(self, server_url: str) -> None:
        super().__init__(server_url)
        self.delay_s = self.drip_s = 0.0
        self.swallows: frozenset[Way] = frozenset()
        self.refuses = False
        self.passed = dict.fromkeys(Way, 0)
        self.cuts = 0
        self._left: dict[Way, int | None] = dict.fromkeys(Way, None)
        self._doomed: bytes | None = None
        self._links: set[_Link] = set()

    @property
    def connections(self) -> int:
        """How many go through now."""
        return len(self._links)

    def swallow(self) -> None:
        """Become a black hole: nothing passes any more, and nobody hears of it."""
        self.swallows = frozenset(Way)

    def swallow_those_open(self, that_said: bytes = b"") -> int:
        """Become one for the connections that are open now and have said this to the server; how many."""

        async def swallow() -> int:
            links = [link for link in self._links if that_said in link.said]
            for link in links:
                link.is_swallowed = True
            return len(links)

        return self._on_loop(swallow())

    def heal(self) -> None:
        """Pass on again what comes from now on."""
        self.delay_s = self.drip_s = 0.0
        self.swallows = frozenset()
        self.refuses = False
        self._left = dict.fromkeys(Way, None)
        self._doomed = None

    def cut(self, *, reset: bool = True) -> None:
        """Cut every connection now."""

        async def cut() -> None:
            for link in list(self._links):
                self.cuts += 1
                link.cut(reset=reset)

        self._on_loop(cut())

    def cut_after(self, count: int, way: Way) -> None:
        """Let so many bytes more go this way, then cut the connection that has the next one."""
        self._left[way] = count

    def lose_reply(self, to: bytes) -> None:
        """Let the next words to the server that hold these bytes pass, but not its answer: cut before it."""
        self._doomed = to

    def lose_next_reply(self) -> None:
        """Let the next words to the server pass, whatever they are, but not its answer."""
        self._doomed = b""

    def half_close(self, way: Way) -> None:
        """End this way of every connection, as if its sender had said all; the way back stays open."""

        async def half_close() -> None:
            for link in list(self._links):
                link.ended.add(way)
                with contextlib.suppress(OSError):
                    link.ends[way].write_eof()

        self._on_loop(half_close())

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass bytes on in both directions."""
        if self.refuses:
            abort(writer, reset=True)
            return
        from_server, to_server = await self.to_server()
        link = _Link(writer, to_server)
        self._links.add(link)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pass(link, reader, Way.TO_SERVER))
                both.create_task(self._pass(link, from_server, Way.TO_CLIENT))
        except* OSError:
            pass
        finally:
            self._links.discard(link)
            abort(to_server)

    async def _pass(self, link: _Link, source: asyncio.StreamReader, way: Way) -> None:
        target = link.ends[way]
        while data := await source.read(_CHUNK):
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            if way in self.swallows or link.is_swallowed or way in link.ended:
                continue
            if way is Way.TO_CLIENT and link.loses_next_reply:
                self.cuts += 1
                await link.finish()
                return
            if way is Way.TO_SERVER and len(link.said) < _CHUNK:
                link.said += data
            let, is_cut = self._let_through(link, data, way)
            await self._write(link, let, way)
            if is_cut:
                self.cuts += 1
                await link.finish()
                return
        # Whoever is swallowed does not hear of an end either.
        is_heard = way not in self.swallows and not link.is_swallowed
        if is_heard and target.can_write_eof() and not target.transport.is_closing():
            target.write_eof()

    def _let_through(self, link: _Link, data: bytes, way: Way) -> tuple[bytes, bool]:
        """What of these bytes may pass, and whether the connection is cut behind them."""
        if way is Way.TO_SERVER and self._doomed is not None and self._doomed in data:
            link.loses_next_reply = True
            self._doomed = None
        left = self._left[way]
        if left is None or len(data) <= left:
            if left is not None:
                self._left[way] = left - len(data)
            return data, False
        self._left[way] = None
        return data[:left], True

    async def _write(self, link: _Link, data: bytes, way: Way) -> None:
        target = link.ends[way]
        pieces = [data[at : at + 1] for at in range(len(data))] if self.drip_s else [data]
        for piece in pieces:
            # It may have been ended amid them.
            if way in link.ended or target.transport.is_closing():
                return
            # Before anybody can have seen it.
            self.passed[way] += len(piece)
            target.write(piece)
            await target.drain()
            if self.drip_s:
                await asyncio.sleep(self.drip_s)
