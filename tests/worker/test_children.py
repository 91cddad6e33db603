"""What a pool and its processes say to each other, and how processes are started and watched."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.support.doors import Door, door
from tests.support.pids import is_alive
from tests.support.threads import Running
from tests.support.waiting import WAIT_S, eventually
from tests.tasks.processes import errands
from ulak import Backoff
from ulak.clock import SYSTEM
from ulak.context import Context
from ulak.core.job import Cancelled, Cause, Dead, Done, Failure, Grant, Hold, Lease, Retry, Spec, Work
from ulak.executors import start_of
from ulak.testing import ManualClock
from ulak.worker import child as child_side
from ulak.worker import children, nursery
from ulak.worker.execute import DONE, Failed
from ulak.worker.nursery import Child, Closed, Errand, Nursery, Why
from ulak.worker.wire import (
    FRAME_BYTES_MAX,
    Broken,
    Ended,
    FromChild,
    Garbled,
    Module,
    Pipe,
    Progress,
    Ready,
    Run,
    Start,
    Stop,
    ToChild,
    ended,
    run_of,
)

ERROR = Failure("ValueError", "what went wrong: ü", "File ...")


def a_lease() -> Lease:
    spec = Spec("mail", "json", 3, "hello.welcome", {"trace": "é"}, "u", "i", Backoff(0.5, 7.0, 0.25))
    work = Work(2**62, spec, b"\x00\xff{}", -(2**63), 1.5)
    return Lease(Grant("uid", 2**50, "worker", 30.0), work, 4, 2, 12.25, 13.5, 1, Backoff(1.0, 2.0))


class Ends:
    """Both ends of a line, the parent's and the child's; mine and theirs are the sockets below."""

    def __init__(self) -> None:
        self.mine, self.theirs = socket.socketpair()
        self.parent: Pipe[FromChild] = Pipe(self.mine, FromChild)
        self.child: Pipe[ToChild] = Pipe(self.theirs, ToChild)


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.parent.close()
    made.child.close()


# Frames


def test_a_lease_is_in_a_child_what_it_was_but_for_what_only_its_pool_needs(ends: Ends) -> None:
    lease = a_lease()
    ends.parent.send(run_of(3, lease))
    frame = ends.child.receive()
    assert isinstance(frame, Run)
    spec = msgspec.structs.replace(lease.work.spec, backoff=None, unique_key=None, idempotency_key=None)
    work = msgspec.structs.replace(lease.work, spec=spec)
    assert frame.lease == msgspec.structs.replace(lease, work=work, backoff=None)


@pytest.mark.parametrize(
    "frame",
    [
        Start(
            ["hello.py", "-x"], [Module("hello", "/hello.py"), Module("mail")], "app", ["a"], "sqlite:///a"
        ),
        run_of(3, a_lease()),
        Stop(3),
    ],
    ids=lambda frame: type(frame).__name__,
)
def test_what_is_said_to_a_child_arrives_as_it_was(ends: Ends, frame: ToChild) -> None:
    ends.parent.send(frame)
    assert ends.child.receive() == frame


@pytest.mark.parametrize(
    "ending",
    [
        DONE,
        Done(b"\x00" * 65_536),
        Failed(Cause.ERROR, ERROR, 3.5),
        Retry(2.5, Cause.SNOOZE, refund=True, error=ERROR),
        Hold(Cause.UNDECODABLE, ERROR),
        Dead(Cause.REJECT, error=ERROR),
        Cancelled(error=ERROR),
    ],
    ids=lambda ending: type(ending).__name__,
)
@pytest.mark.parametrize("acked", [False, True])
def test_every_ending_arrives_as_it_was(ends: Ends, ending, acked: bool) -> None:
    ends.child.send(ended(ending, acked=acked))
    frame = ends.parent.receive()
    assert isinstance(frame, Ended)
    assert (frame.ending, frame.acked) == (ending, acked)
    assert (frame.ending is DONE) == (ending is DONE)


def test_frames_come_one_by_one_however_they_are_cut(ends: Ends) -> None:
    frames = [Ready(), Progress(1, "half"), Broken("x" * 3000), ended(DONE, acked=False)]
    encode = msgspec.msgpack.Encoder().encode
    stream = b"".join(len(encode(frame)).to_bytes(4, "big") + encode(frame) for frame in frames)
    for size in (1, 3, 7, 1000, len(stream)):
        pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
        there = Running(lambda pieces=pieces: [ends.theirs.sendall(piece) for piece in pieces])
        assert [ends.parent.receive() for _ in frames] == frames
        there.result()
        assert not ends.parent.has_more


def test_a_frame_that_was_not_finished_is_none(ends: Ends) -> None:
    ends.theirs.sendall(b"\x00\x00\x00\x05\x81")
    ends.theirs.close()
    assert ends.parent.receive() is None


@pytest.mark.parametrize(
    "garbage",
    [
        (FRAME_BYTES_MAX + 1).to_bytes(4, "big"),
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x00",
        b"\x00\x00\x00\x01\xc1",
        b"\x00\x00\x00\x06\x81\xa4typeX",
        b"GET / HTTP/1.1\r\n\r\n",
        # A frame with a field missing.
        b"\x00\x00\x00\x0f" + msgspec.msgpack.encode({"type": "Progress"}),
    ],
)
def test_what_is_no_frame_is_told(ends: Ends, garbage: bytes) -> None:
    ends.theirs.sendall(garbage)
    with pytest.raises(Garbled):
        ends.parent.receive()


def test_a_short_word_is_said_at_once_or_not_at_all(ends: Ends) -> None:
    said = 0
    while ends.parent.send_at_once(Stop(said)):
        said += 1
    assert said > 100
    assert [ends.child.receive() for _ in range(said)] == [Stop(number) for number in range(said)]
    ends.child.close()
    assert not ends.parent.send_at_once(Stop(0))


def test_large_frames_pass_while_both_ends_send(ends: Ends) -> None:
    """Neither end waits for the other to listen first."""
    lease = a_lease()
    large = msgspec.structs.replace(lease, work=msgspec.structs.replace(lease.work, body=b"x" * 1_000_000))
    there = Running(lambda: [ends.child.receive() for _ in range(3)])
    for number in range(3):
        ends.parent.send(run_of(number, large))
    assert [frame.number for frame in there.result()] == [0, 1, 2]


def test_threads_that_send_at_once_do_not_tear_each_others_frames(ends: Ends) -> None:
    texts = [f"{number} {'x' * 100_000}" for number in range(8)]
    senders = [Running(lambda text=text: ends.child.send(Broken(text))) for text in texts]
    got = {ends.parent.receive().reason for _ in texts}  # type: ignore[union-attr]
    assert got == set(texts)
    for sender in senders:
        sender.result()


def test_cutting_wakes_whoever_waits_and_keeps_what_has_come(ends: Ends) -> None:
    ends.child.send(Ready())
    ends.parent.cut()
    assert ends.parent.receive() == Ready()
    assert ends.parent.receive() is None
    with pytest.raises(OSError):
        ends.parent.send(Stop(1))


# Processes


@contextlib.contextmanager
def a_nursery(monkeypatch, code: str, clock=SYSTEM) -> Iterator[Nursery]:
    """A nursery whose processes run these lines, with `end` as their socket."""
    boot = f"import os, socket, sys, threading\nend = socket.socket(fileno=int(sys.argv[1]))\n{code}\n"
    monkeypatch.setattr(nursery, "_BOOT", boot)
    made = Nursery("test:app", str(Path.cwd()), clock)
    made.open()
    try:
        yield made
    finally:
        for born in made.children:
            made.forget(born)
        made.close()


WAITING = "end.sendall(b'.')\nthreading.Event().wait()"


def begun(child: Child, errand: Errand, now: float) -> None:
    child.is_ready = True
    child.take(errand)
    errand.begin(now)


def an_errand(**limits: float | None) -> Errand:
    return Errand(1, Context(a_lease()), **{"timeout_s": None, "kill_after_s": None, **limits})


def has_come_up(child: Child) -> bool:
    return child.pipe._socket.recv(1) == b"."


def test_a_process_gets_the_path_of_its_parent_and_nothing_else_of_it(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    (tmp_path / "json.py").write_text("raise SystemExit('it was imported by chance')")
    read = "print(end.recv(100_000).partition(b'[')[2].decode(), file=open('path', 'w'), flush=True)"
    files = "print(*sorted(os.listdir('/proc/self/fd')), file=open('files', 'w'), flush=True)"
    with a_nursery(monkeypatch, f"{read}\nimport json\n{files}") as made:
        assert made.bear().ended(WAIT_S)
    told = (tmp_path / "path").read_text()
    assert all(f'"{entry}"' in told for entry in sys.path if entry)
    # Of three standard ones, its socket, the two files it opened here.
    assert len((tmp_path / "files").read_text().split()) <= 6


def test_a_process_is_killed_when_its_errands_time_is_over_and_not_before(monkeypatch) -> None:
    clock = ManualClock()
    with a_nursery(monkeypatch, WAITING, clock) as made:
        child = made.bear()
        assert has_come_up(child)
        begun(child, an_errand(timeout_s=5.0, kill_after_s=2.0), clock.interval())
        for _ in range(3):
            eventually(lambda: clock.sleepers == 1)
            clock.advance(2.2)
            assert child.is_alive
        eventually(lambda: clock.sleepers == 1)
        clock.advance(0.4)
        assert child.ended(WAIT_S)
        assert (child.killed, child.end) == (Why.TOO_LATE, "by SIGKILL")


def test_an_errand_that_is_asked_to_end_is_told_and_killed_only_if_that_was_said(monkeypatch) -> None:
    clock = ManualClock()
    with a_nursery(monkeypatch, WAITING, clock) as made:
        patient, strict = made.bear(), made.bear()
        for child, kill_after_s in ((patient, None), (strict, 3.0)):
            assert has_come_up(child)
            errand = an_errand(kill_after_s=kill_after_s)
            begun(child, errand, clock.interval())
            errand.context.ask_to_stop()
        eventually(lambda: not strict.is_alive, clock=clock, step_s=0.5)
        assert strict.killed is Why.ASKED
        assert patient.is_alive


def test_another_errand_than_the_one_whose_time_is_over_is_left_alone(monkeypatch) -> None:
    with a_nursery(monkeypatch, WAITING) as made:
        child = made.bear()
        first, second = an_errand(timeout_s=1.0), an_errand()
        begun(child, first, 0.0)
        assert child.drop()
        begun(child, second, 0.0)
        child.kill(Why.TOO_LATE, first)
        assert (child.is_alive, child.killed) == (True, None)
        child.kill(Why.TOO_LATE, second)
        assert not child.drop()
        assert child.ended(WAIT_S)


def test_a_process_that_takes_too_long_to_start_is_killed(monkeypatch) -> None:
    clock = ManualClock()
    with a_nursery(monkeypatch, WAITING, clock) as made:
        child = made.bear()
        assert has_come_up(child)
        eventually(lambda: clock.sleepers == 1)
        clock.advance(nursery.START_MAX_S)
        assert child.ended(WAIT_S)
        assert child.killed is Why.SLOW


def test_who_waits_for_a_dead_process_whose_heir_holds_the_line_hears_of_it(monkeypatch) -> None:
    heir = "pid = os.fork()\nif pid == 0: threading.Event().wait(60)\nend.sendall(b'.')\nend.recv(1)"
    with a_nursery(monkeypatch, heir) as made:
        child = made.bear()
        assert has_come_up(child)
        listening = Running(child.pipe.receive)
        os.kill(child.pid, signal.SIGKILL)
        assert listening.result() is None
        os.killpg(child.pid, signal.SIGKILL)


def test_a_system_without_room_for_a_process_is_an_error_of_whoever_asked(monkeypatch) -> None:
    with a_nursery(monkeypatch, WAITING) as made:
        before = len(list(Path("/proc/self/fd").iterdir()))
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        with pytest.raises(FileNotFoundError):
            made.bear()
        assert len(list(Path("/proc/self/fd").iterdir())) == before
        assert made.children == []


def test_progress_of_an_earlier_errand_is_none_of_this_one(monkeypatch, ends: Ends) -> None:
    with a_nursery(monkeypatch, WAITING) as made:
        child, errand = made.bear(), an_errand()
        child.pipe.close()
        child.pipe = ends.parent
        for frame in (Progress(0, "old"), Progress(1, "new"), Progress(0, "old"), ended(DONE, acked=True)):
            ends.child.send(frame)
        assert children._answer(child, errand) is DONE
    assert (errand.context.progress_text, errand.context.acked) == ("new", True)


@pytest.mark.parametrize("frame", [Ready(), Broken("?"), Ended()], ids=lambda frame: type(frame).__name__)
def test_what_is_no_answer_is_the_end_of_a_process(monkeypatch, ends: Ends, frame: FromChild) -> None:
    with a_nursery(monkeypatch, WAITING) as made:
        child = made.bear()
        child.pipe.close()
        child.pipe = ends.parent
        ends.child.send(frame)
        assert children._answer(child, an_errand()) is None
        assert (child.ended(WAIT_S), child.killed) == (True, Why.GARBLED)


def test_nothing_is_started_after_the_end(monkeypatch) -> None:
    with a_nursery(monkeypatch, WAITING) as made:
        made.bear()
    with pytest.raises(Closed):
        made.bear()
    made.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "ulak-test:app-processes"]


# A process, by hand


@pytest.fixture
def gate() -> Iterator[Door]:
    with door() as made:
        yield made


@pytest.fixture
def hands_on() -> Iterator[Child]:
    """A process that has its App, and waits for jobs."""
    made = Nursery("errands:app", str(Path.cwd()), SYSTEM)
    made.open()
    try:
        child = made.bear()
        child.pipe.send(start_of(errands.app, None))
        assert child.pipe.receive() == Ready()
        child.is_ready = True
        yield child
    finally:
        for born in made.children:
            made.forget(born)
        made.close()


def a_run(number: int, task: str, body: bytes) -> Run:
    lease = a_lease()
    spec = msgspec.structs.replace(lease.work.spec, task=f"errands.{task}")
    return run_of(number, msgspec.structs.replace(lease, work=Work(1, spec, body, 0, 1.5)))


def test_frames_that_come_at_once_are_all_heard(hands_on: Child, gate: Door) -> None:
    body = msgspec.json.encode({"place": gate.place})
    encode = msgspec.msgpack.Encoder().encode
    both = [encode(a_run(7, "obey", body)), encode(Stop(7))]
    hands_on.pipe._socket.sendall(b"".join(len(part).to_bytes(4, "big") + part for part in both))
    gate.guest().let_go("on")
    assert hands_on.pipe.receive() == ended(Done(b'"on"'), acked=False)


def test_a_wish_to_stop_another_errand_is_not_for_this_one(hands_on: Child, gate: Door) -> None:
    hands_on.pipe.send(a_run(7, "report", msgspec.json.encode({"place": gate.place})))
    first = gate.guest()
    assert hands_on.pipe.receive() == Progress(7, "1/3 first")
    hands_on.pipe.send(Stop(6))
    first.let_go()
    # It has heard what came before it tells of this.
    second = gate.guest()
    assert hands_on.pipe.receive() == Progress(7, "2/3 second")
    second.let_go()
    assert hands_on.pipe.receive() == ended(Done(b"false"), acked=False)


def test_a_process_without_a_job_leaves_in_order_when_nothing_more_comes(hands_on: Child) -> None:
    hands_on.pipe.finish()
    assert hands_on.ended(WAIT_S)
    assert hands_on.end == "with status 0"


def test_a_process_leaves_its_job_when_nobody_waits_for_it(hands_on: Child, gate: Door) -> None:
    hands_on.pipe.send(a_run(1, "stand", msgspec.json.encode({"place": gate.place})))
    guest = gate.guest()
    hands_on.pipe.finish()
    # At once, and not when its time to leave in order is over.
    assert hands_on.ended(child_side.LEAVE_S / 2)
    assert guest.hear() == ""
    assert hands_on.end == "with status 70"


def test_a_process_that_understands_nothing_ends(hands_on: Child) -> None:
    hands_on.pipe._socket.sendall(b"\x00\x00\x00\x01\xc1")
    assert hands_on.ended(WAIT_S)
    assert hands_on.end == "with status 70"


def test_a_process_sees_its_parents_end_by_itself_where_no_signal_tells(tmp_path: Path) -> None:
    """The other end of its line is held by somebody who lives on."""
    untied = nursery._BOOT.replace(
        "import main\n", "import main\nimport ulak.worker.child as child\nchild.die_with_parent = bool\n"
    )
    between = f"""
import os, subprocess, sys
fd = sys.argv[1]
child = subprocess.Popen([sys.executable, "-c", {untied!r}, fd, str(os.getpid())], pass_fds=[int(fd)])
print(child.pid, flush=True)
input()
"""
    mine, theirs = socket.socketpair()
    pipe: Pipe[FromChild] = Pipe(mine, FromChild)
    fd = str(theirs.fileno())
    argv = [sys.executable, "-c", between, fd]
    with subprocess.Popen(argv, stdin=-1, stdout=-1, text=True, pass_fds=[theirs.fileno()]) as parent:
        theirs.close()
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        path = msgspec.json.encode([entry for entry in sys.path if entry])
        mine.sendall(len(path).to_bytes(4, "big") + path)
        pipe.send(start_of(errands.app, None))
        assert pipe.receive() == Ready()
        parent.kill()
        eventually(lambda: not is_alive(pid))
    pipe.close()
