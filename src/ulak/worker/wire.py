"""What a pool and the processes that run its jobs say to each other: frames over a socket of their own.

Nothing of it is pickled, and no frame holds an object of the user's.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Generic, TypeAlias, TypeVar, assert_never

import msgspec

from ulak.core.job import Cancelled, Dead, Done, Grant, Hold, Lease, Retry, Spec, Work
from ulak.worker.execute import DONE, Ending, Failed

FRAME_BYTES_MAX = 4 * 1024 * 1024
"""More than the largest job, result and error take together."""

_HEAD_BYTES = 4
_READ_BYTES = 256 * 1024


class Module(msgspec.Struct, frozen=True):
    """A module as another process imports it. file: where it must be, if it was run as a program here."""

    name: str
    file: str | None = None


class Start(msgspec.Struct, frozen=True, tag=True):
    """To a child, once: what it is to run.

    argv: as the program was called. modules: in this order; the App is in the first one, under `attribute`.
    tasks: the names that it has to have then. url: its store.
    """

    argv: list[str]
    modules: list[Module]
    attribute: str
    tasks: list[str]
    url: str


class Run(msgspec.Struct, frozen=True, tag=True):
    """To a child: run this job. number: names this errand.

    The rest is the lease, without what only a failure or a settlement by the pool needs: backoffs and keys.
    """

    number: int
    store: str
    epoch: int
    worker: str
    lease_s: float
    id: int
    queue: str
    task: str | None
    codec: str
    body: bytes
    headers: dict[str, str] | None
    priority: int
    created_at: float
    max_attempts: int
    delivery: int
    attempt: int
    crashes: int
    lease_end: float
    claimed_at: float

    @property
    def lease(self) -> Lease:
        """The lease."""
        spec = Spec(self.queue, self.codec, self.max_attempts, self.task, self.headers)
        return Lease(
            grant=Grant(self.store, self.epoch, self.worker, self.lease_s),
            work=Work(self.id, spec, self.body, self.priority, self.created_at),
            delivery=self.delivery,
            attempt=self.attempt,
            lease_end=self.lease_end,
            claimed_at=self.claimed_at,
            crashes=self.crashes,
        )


def run_of(number: int, lease: Lease) -> Run:
    """What a child is told of a lease."""
    return Run(
        number,
        store=lease.store,
        epoch=lease.epoch,
        worker=lease.worker,
        lease_s=lease.lease_s,
        id=lease.id,
        queue=lease.queue,
        task=lease.task,
        codec=lease.codec,
        body=lease.body,
        headers=None if lease.headers is None else dict(lease.headers),
        priority=lease.priority,
        created_at=lease.created_at,
        max_attempts=lease.max_attempts,
        delivery=lease.delivery,
        attempt=lease.attempt,
        crashes=lease.crashes,
        lease_end=lease.lease_end,
        claimed_at=lease.claimed_at,
    )


class Stop(msgspec.Struct, frozen=True, tag=True):
    """To a child: somebody asks for the end of this errand."""

    number: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    """From a child: it has the App, and waits for jobs."""


class Broken(msgspec.Struct, frozen=True, tag=True):
    """From a child: it cannot run the App; its last words."""

    reason: str


class Progress(msgspec.Struct, frozen=True, tag=True):
    """From a child: how far its errand is."""

    number: int
    text: str


class Ended(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """From a child: how its job ended; one of these is given. acked: as of its Context."""

    acked: bool = False
    done: Done | None = None
    retry: Retry | None = None
    hold: Hold | None = None
    dead: Dead | None = None
    cancelled: Cancelled | None = None
    failed: Failed | None = None

    @property
    def ending(self) -> Ending | None:
        """The one that is given."""
        if self.done == DONE:
            return DONE
        return self.done or self.failed or self.retry or self.dead or self.hold or self.cancelled


def ended(ending: Ending, *, acked: bool) -> Ended:
    """What a child says of an ending."""
    match ending:
        case Done():
            return Ended(acked, done=ending)
        case Failed():
            return Ended(acked, failed=ending)
        case Retry():
            return Ended(acked, retry=ending)
        case Hold():
            return Ended(acked, hold=ending)
        case Dead():
            return Ended(acked, dead=ending)
        case Cancelled():
            return Ended(acked, cancelled=ending)
        case _:
            assert_never(ending)


ToChild: TypeAlias = Start | Run | Stop
FromChild: TypeAlias = Ready | Broken | Progress | Ended
Heard = TypeVar("Heard")


class Garbled(Exception):
    """What came is no frame: somebody else has written into the socket."""


class Pipe(Generic[Heard]):
    """One end of the socket. heard: what comes from the other end.

    Any thread may send, one at a time receives.
    """

    def __init__(self, end: socket.socket, heard: object) -> None:
        self._socket = end
        self._decode = msgspec.msgpack.Decoder(heard).decode
        self._encode = msgspec.msgpack.Encoder().encode
        self._sending = threading.Lock()
        self._read = bytearray()

    def fileno(self) -> int:
        """What to poll."""
        return self._socket.fileno()

    @property
    def has_more(self) -> bool:
        """Whether something was read that no frame has been made of, so that polling would not tell of it."""
        return len(self._read) > 0

    def send(self, frame: object) -> None:
        """Say something; blocks while the other end does not listen. Raises OSError once that is gone."""
        body = self._encode(frame)
        assert len(body) <= FRAME_BYTES_MAX
        # Held while it writes, for a frame must not be torn; nobody but the other end can keep it long.
        with self._sending:
            self._socket.sendall(len(body).to_bytes(_HEAD_BYTES, "big") + body)

    def send_at_once(self, frame: object) -> bool:
        """Say something short if that can be done without waiting; whether it was said.

        Not while another thread may be sending.
        """
        body = self._encode(frame)
        try:
            # So short a one is taken whole or not at all.
            self._socket.send(len(body).to_bytes(_HEAD_BYTES, "big") + body, socket.MSG_DONTWAIT)
        except OSError:
            return False
        return True

    def receive(self) -> Heard | None:
        """Wait for the next frame; None once the other end is gone. Raises Garbled."""
        size = _HEAD_BYTES
        while True:
            if len(self._read) >= _HEAD_BYTES:
                size = _HEAD_BYTES + int.from_bytes(self._read[:_HEAD_BYTES], "big")
                if size - _HEAD_BYTES > FRAME_BYTES_MAX:
                    raise Garbled
                if len(self._read) >= size:
                    return self._take(size)
            try:
                more = self._socket.recv(_READ_BYTES)
            except OSError:
                more = b""
            if not more:
                return None
            self._read += more

    def _take(self, size: int) -> Heard:
        body = bytes(self._read[_HEAD_BYTES:size])
        del self._read[:size]
        try:
            heard: Heard = self._decode(body)
        except (msgspec.MsgspecError, ValueError) as error:
            raise Garbled from error
        return heard

    def finish(self) -> None:
        """Say that nothing more comes from here."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        """End it for both ends, also under a thread that waits here; what has come can still be received."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of it."""
        self._socket.close()
