"""A listener for probes: a few paths by GET, answered by a few threads that nobody can keep for long."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from types import TracebackType
from typing import NamedTuple, Self, TypeAlias

from ulak.cli.options import Address
from ulak.clock import SYSTEM, pause
from ulak.errors import ConfigError

_log = logging.getLogger("ulak")

HEAD_BYTES_MAX = 8 * 1024
REQUEST_S = 2.0
"""How long a client may take to send its request, and to take the answer: each in all, not for each byte."""
THREADS = 4
LOOK_S = 1.0
PAUSE_S = 0.2
CLOSED_WITHIN_S = 0.3
"""How long the threads are waited for, all together: a slow client or a store that is away may keep some."""
BACKLOG = 16

TEXT = "text/plain; charset=utf-8"


class Answer(NamedTuple):
    """What a path answers."""

    status: HTTPStatus
    body: bytes
    kind: str = TEXT


Routes: TypeAlias = Mapping[str, Callable[[], Answer]]


class Listener:
    """Listens as soon as it is made, and answers inside a `with`.

    Not by `http.server`, whose time limit is for each read: a client that sends a byte a second keeps it.
    Raises ConfigError for an address that cannot be had.
    """

    def __init__(self, where: Address, routes: Routes) -> None:
        self._routes = routes
        self._is_closed = False
        self._threads: list[threading.Thread] = []
        family = socket.AF_INET6 if ":" in where.host else socket.AF_INET
        try:
            self._socket = socket.create_server(where, family=family, backlog=BACKLOG)
        except OSError as error:
            # The system's own words; what create_server makes of them names the address once more.
            why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
            raise ConfigError(
                f"cannot listen on {where}: {why}\n  set by --health on the command line"
            ) from error
        self._socket.settimeout(LOOK_S)
        host, port = self._socket.getsockname()[:2]
        self.address = Address(host, port)

    def __enter__(self) -> Self:
        for number in range(1, THREADS + 1):
            thread = threading.Thread(target=self._main, name=f"ulak-health-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_closed = True
        with contextlib.suppress(OSError):  # not every system wakes by it who waits for a client
            self._socket.shutdown(socket.SHUT_RDWR)
        until = SYSTEM.interval() + CLOSED_WITHIN_S
        for thread in self._threads:
            thread.join(max(0.0, until - SYSTEM.interval()))
        self._socket.close()

    def _main(self) -> None:
        while not self._is_closed:
            try:
                client, _ = self._socket.accept()
            except TimeoutError:
                continue
            except OSError:
                # It is closed; or there are no more descriptors, say.
                if not self._is_closed:
                    pause(PAUSE_S)
                continue
            # A client that has gone is nobody's trouble.
            with client, contextlib.suppress(OSError):
                self._serve(client)

    def _serve(self, client: socket.socket) -> None:
        head = _head(client)
        if head is None:
            return
        method, answer = self._answer(head)
        is_refused = answer.status is HTTPStatus.METHOD_NOT_ALLOWED
        lines = [
            f"HTTP/1.1 {answer.status.value} {answer.status.phrase}",
            f"Content-Type: {answer.kind}",
            f"Content-Length: {len(answer.body)}",
            "Cache-Control: no-store",
            "Connection: close",
            *(["Allow: GET, HEAD"] if is_refused else []),
        ]
        told = "\r\n".join(lines).encode() + b"\r\n\r\n"
        client.settimeout(REQUEST_S)
        client.sendall(told if method == "HEAD" else told + answer.body)
        client.shutdown(socket.SHUT_WR)

    def _answer(self, head: bytes) -> tuple[str, Answer]:
        if len(head) > HEAD_BYTES_MAX:
            return "GET", _refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        words = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return "GET", _refusal(HTTPStatus.BAD_REQUEST)
        method, target, _ = words
        route = self._routes.get(target.partition("?")[0])
        if method not in ("GET", "HEAD"):
            return method, _refusal(HTTPStatus.METHOD_NOT_ALLOWED)
        if route is None:
            known = ", ".join(self._routes)
            return method, Answer(HTTPStatus.NOT_FOUND, f"there is {known}\n".encode())
        try:
            return method, route()
        except Exception:  # noqa: BLE001 - whatever it is, the next request is answered
            _log.exception("%s could not be answered", target.partition("?")[0])
            return method, _refusal(HTTPStatus.INTERNAL_SERVER_ERROR)


def _head(client: socket.socket) -> bytes | None:
    """All up to the empty line; more than the most if that does not come; None if time is over or it left."""
    until, head = SYSTEM.interval() + REQUEST_S, b""
    while b"\r\n\r\n" not in head and len(head) <= HEAD_BYTES_MAX:
        left_s = until - SYSTEM.interval()
        if left_s <= 0:
            return None
        client.settimeout(left_s)
        read = client.recv(HEAD_BYTES_MAX + 1)
        if not read:
            return None
        head += read
    return head


def _refusal(status: HTTPStatus) -> Answer:
    return Answer(status, f"{status.phrase.lower()}\n".encode())
