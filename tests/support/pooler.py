"""A proxy that hands out PostgreSQL's sessions by the transaction, as pgbouncer does in that mode.

A client has a session of the server only from its first message up to the end of its transaction. So what a
session remembers (prepared statements, settings, advisory locks, LISTEN) is another client's next. As with
pgbouncer, a client gets a process id that is not the server's, and settings in the start-up packet other than
a few are refused.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from tests.support.proxy import Proxy, abort

_SSL, _GSS, _CANCEL, _V3 = 80877103, 80877104, 80877102, 196608
_TRACKED = {"user", "database", "application_name", "client_encoding"}
_TRACKED |= {"datestyle", "timezone", "standard_conforming_strings"}
_ENDS_A_TURN = b"QSF"
_OPENS_A_TURN = b"PBDECH"
_READY, _TERMINATE = b"Z", b"X"


def message(kind: bytes, body: bytes) -> bytes:
    """One message of the protocol."""
    return kind + struct.pack("!i", len(body) + 4) + body


async def messages(reader: asyncio.StreamReader) -> AsyncIterator[tuple[bytes, bytes]]:
    """Each message's kind and its bytes, up to the end of the connection."""
    while kind := await reader.read(1):
        length = await reader.readexactly(4)
        yield kind, kind + length + await reader.readexactly(struct.unpack("!i", length)[0] - 4)


@dataclass(eq=False)
class _Client:
    """turns: how many times the server still has to say that it is ready. is_amid: one more is begun."""

    writer: asyncio.StreamWriter
    session: _Session | None = None
    turns: int = 0
    is_amid: bool = False


@dataclass(eq=False)
class _Session:
    """One of the server's. client: who has it now."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    key: bytes = b""
    greeting: list[bytes] = field(default_factory=list)
    client: _Client | None = None


class Pooler(Proxy):
    """So many sessions for any number of clients of one user and database.

    sessions: how many it has now. transactions: how many were served.
    """

    def __init__(self, server_url: str, *, size: int = 2) -> None:
        super().__init__(server_url)
        self._places = asyncio.Semaphore(size)
        self._idle: list[_Session] = []
        self._clients: dict[bytes, _Client] = {}
        self._listeners: set[asyncio.Task[None]] = set()
        self._start: bytes = b""
        self.transactions = 0

    @property
    def sessions(self) -> int:
        """How many of the server's sessions there are now."""
        return len(self._listeners)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Let a client in, then give it a session for each of its transactions."""
        key = os.urandom(8)
        client = self._clients[key] = _Client(writer)
        try:
            if await self._let_in(client, key, reader):
                async for kind, whole in messages(reader):
                    if kind == _TERMINATE:
                        break
                    await self._pass_on(client, kind, whole)
        finally:
            del self._clients[key]
            if client.session is not None:  # its transaction ends with its session
                abort(client.session.writer)

    async def ended(self) -> None:
        """End the sessions."""
        for listener in (listeners := list(self._listeners)):
            listener.cancel()
        await asyncio.gather(*listeners, return_exceptions=True)

    async def _let_in(self, client: _Client, key: bytes, reader: asyncio.StreamReader) -> bool:
        while True:
            length, code = struct.unpack("!ii", await reader.readexactly(8))
            rest = await reader.readexactly(length - 8)
            if code not in {_SSL, _GSS}:
                break
            client.writer.write(b"N")
        if code == _CANCEL:
            await self._cancel(rest)
            return False
        names = rest.split(b"\0")[:-2:2]
        refused = [
            name.decode() for name in names if name.lower().decode() not in _TRACKED | {"user", "database"}
        ]
        if refused:
            told = f"SFATAL\0C08P01\0Munsupported startup parameter: {refused[0]}\0\0"
            client.writer.write(message(b"E", told.encode()))
            await client.writer.drain()
            return False
        self._start = message(b"", struct.pack("!i", _V3) + rest)
        await self._places.acquire()
        session = await self._session()
        client.writer.write(message(b"R", struct.pack("!i", 0)) + b"".join(session.greeting))
        client.writer.write(message(b"K", key) + message(_READY, b"I"))
        self._free(session)
        return True

    async def _pass_on(self, client: _Client, kind: bytes, whole: bytes) -> None:
        if client.session is None:
            await self._places.acquire()
            client.session = await self._session()
            client.session.client = client
        if kind in _ENDS_A_TURN:
            client.turns += 1
            client.is_amid = False
        elif kind in _OPENS_A_TURN:
            client.is_amid = True
        client.session.writer.write(whole)
        await client.session.writer.drain()

    async def _session(self) -> _Session:
        """One that nobody has, a new one if need be; the caller has a place for it."""
        while self._idle:
            session = self._idle.pop()
            if not session.reader.at_eof():
                return session
        try:
            session = await self._connect()
        except BaseException:
            self._places.release()
            raise
        listener = asyncio.create_task(self._listen(session))
        self._listeners.add(listener)
        listener.add_done_callback(self._listeners.discard)
        return session

    async def _connect(self) -> _Session:
        session = _Session(*await self.to_server())
        session.writer.write(self._start)
        async for kind, whole in messages(session.reader):
            if kind == _READY:
                return session
            if kind == b"K":
                session.key = whole[5:]
            elif kind == b"S":
                session.greeting.append(whole)
        raise ConnectionError("the server has let nobody in")

    async def _listen(self, session: _Session) -> None:
        """Pass on what the server says to whoever has the session, if anybody."""
        try:
            async for kind, whole in messages(session.reader):
                client = session.client
                if client is None:
                    continue
                client.writer.write(whole)
                if kind == _READY:
                    client.turns -= 1
                    if whole[5:] == b"I" and not client.turns and not client.is_amid:
                        self.transactions += 1
                        client.session = session.client = None
                        self._free(session)
                await client.writer.drain()
        except (OSError, EOFError):
            pass
        finally:
            abort(session.writer)
            if session in self._idle:
                self._idle.remove(session)
            elif session.client is not None:
                session.client.session = None
                abort(session.client.writer)
                self._places.release()

    def _free(self, session: _Session) -> None:
        self._idle.append(session)
        self._places.release()

    async def _cancel(self, key: bytes) -> None:
        client = self._clients.get(key)
        if client is not None and client.session is not None:
            _, writer = await self.to_server()
            writer.write(message(b"", struct.pack("!i", _CANCEL) + client.session.key))
            await writer.drain()
            writer.close()
