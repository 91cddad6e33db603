"""An App whose jobs run in processes: each imports this module anew. Tests set its url."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import ctypes
import os
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.doors import knock
from tests.support.pools import AT_ONCE
from tests.support.waiting import eventually
from ulak import App, Cancel, Context, Reject, Retry, Snooze, WouldDeadlock, current_job

app = App("memory://", backoff=AT_ONCE, visibility_timeout=30.0)

marks: list[str] = []
"""What a process knows and its children do not."""


class Refused(Exception):
    """Cannot be made again from its text alone."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{reason} ({code})")


@app.around
@contextlib.contextmanager
def around(context: Context) -> Iterator[None]:
    marks.append(f"before {context.id}")
    try:
        yield
    finally:
        marks.append(f"after {context.id}")


@app.task
def where(n: int = 0) -> int:
    return os.getpid()


@app.task
async def awhere() -> int:
    await asyncio.sleep(0)
    return os.getpid()


@app.task
def marked() -> list[str]:
    return marks


@app.task
def look(ctx: Context) -> list[Any]:
    assert current_job() is ctx
    assert threading.current_thread() is threading.main_thread()
    about = [ctx.id, ctx.task, ctx.queue, ctx.attempt, ctx.max_attempts, ctx.delivery, ctx.worker]
    return [*about, ctx.redelivered, list(ctx.token), ctx.priority, dict(ctx.headers), ctx.cancelled]


@app.task
def stand(place: str, say: str = "") -> str:
    word, _ = knock(place, say)
    return word


@app.task(max_attempts=3)
def die(how: str) -> None:
    match how:
        case "exit":
            os._exit(137)
        case "segfault":
            ctypes.string_at(0)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "close":
            os.closerange(3, 1024)
        case "close and hang":
            pipe_of_parent().shutdown(socket.SHUT_WR)
            threading.Event().wait()
        case "garble":
            pipe_of_parent().sendall(b"\xff\xff\xff\xff")
            threading.Event().wait()
        case "mumble":
            pipe_of_parent().sendall(b"\x00\x00\x00\x01\xc1")
            threading.Event().wait()
        case "leave a heir":
            if os.fork() == 0:
                signal.alarm(5)
                signal.pause()
            os._exit(5)


def pipe_of_parent() -> socket.socket:
    """The child's end of what it shares with its pool, as somebody finds it who looks for it."""
    for fd in range(3, 1024):
        if is_socket(fd):
            return socket.socket(fileno=os.dup(fd))
    raise AssertionError


@app.task(max_attempts=2)
def fail(how: str) -> Any:
    match how:
        case "refused":
            raise Refused(550, "mailbox unavailable")
        case "retry":
            raise Retry(after=3600, reason="later")
        case "snooze":
            raise Snooze(3600)
        case "reject":
            raise Reject("never")
        case "cancel":
            raise Cancel("not wanted")
        case "exit":
            raise SystemExit(0)
        case "interrupt":
            raise KeyboardInterrupt
        case "generator exit":
            raise GeneratorExit
        case "result":
            return object()


@app.task
def large(size: int, text: str) -> str:
    return "x" * size


@app.task
def shout(lines: int) -> int:
    for number in range(lines):
        print(f"line {number} {'x' * 1000}")
    return lines


@app.task
def report(ctx: Context, place: str) -> bool:
    ctx.progress(1, 3, "first")
    knock(place, "first")
    ctx.progress(2, 3, "second")
    knock(place, "second")
    return ctx.cancelled


@app.task(max_attempts=1)
def obey(ctx: Context, place: str) -> str:
    word, end = knock(place, "stands")
    eventually(lambda: ctx.cancelled)
    end.sendall(b"was asked to stop")
    return word


@app.task(max_attempts=1, timeout=0.3, kill_after=30)
def polite(ctx: Context) -> None:
    eventually(lambda: ctx.cancelled)


@app.task(max_attempts=1, timeout=0.3, kill_after=30)
async def apolite() -> None:
    await asyncio.Event().wait()


@app.task(max_attempts=2, timeout=0.3, kill_after=0)
def hang(place: str) -> None:
    hold(place)


@app.task(max_attempts=1, timeout=0.3)
def hang_by_default(place: str) -> None:
    hold(place)


@app.task(max_attempts=1, kill_after=0)
def hang_for_ever(place: str) -> None:
    hold(place)


def hold(place: str) -> None:
    """Hang, with a program of its own that hangs too and would tell of its end by the same line."""
    end = socket.socket(socket.AF_UNIX)
    end.connect(place)
    end.sendall(str(os.getpid()).encode())
    subprocess.run([sys.executable, "-c", "input()"], stdin=end, pass_fds=[end.fileno()], check=False)


@app.task(max_attempts=2, timeout=0.3, kill_after=0, backoff=lambda attempt, error: 3600)
def hang_with_advice() -> None:
    threading.Event().wait()


@app.task(max_attempts=1)
def keep_the_interpreter(place: str) -> None:
    """Hang in C, without letting any other thread of the process run Python."""
    end = socket.socket(socket.AF_UNIX)
    end.connect(place)
    end.sendall(str(os.getpid()).encode())
    ctypes.PyDLL(None).pause()


@app.task
def enqueue(n: int) -> int:
    return where.enqueue(n).id


@app.task
def wait_for_another() -> str:
    job = where.enqueue()
    try:
        job.result()
    except WouldDeadlock:
        return "would deadlock"
    return "waited"


@app.task
def start_a_program() -> int:
    """How a program ends that a job starts and tells to."""
    program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    program.terminate()
    return program.wait()


@app.task
def files_of_a_program() -> list[str]:
    """What is open in a program that a job starts, beside the standard three and the folder it looks at."""
    look = "import os; print(*sorted(set(map(int, os.listdir('/proc/self/fd'))) - {0, 1, 2, 3}))"
    run = subprocess.run([sys.executable, "-c", look], close_fds=False, capture_output=True, check=True)
    return run.stdout.decode().split()


@app.task
def leave_word(file: str) -> None:
    """Have something happen when the process ends in order."""
    atexit.register(lambda: Path(file).write_text("left in order"))


@app.task
def lines_of_a_fork() -> int:
    """How many sockets are open in a process that a job forks."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, bytes([sum(map(is_socket, range(3, 256)))]))
        os._exit(0)
    os.waitpid(pid, 0)
    return os.read(read, 1)[0]


def is_socket(fd: int) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISSOCK(os.fstat(fd).st_mode)
    return False


@app.task
def untied(place: str) -> None:
    """Stand where the end of the parent is no signal, as on systems that have none."""
    ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
    knock(place)


@app.task
def fork_and_end() -> int:
    """How a fork of a job's process ends that is told to."""
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(tell, b".")
        time.sleep(60)
        os._exit(0)
    os.read(ready, 1)
    os.kill(pid, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@app.task(max_attempts=2)
def write(ctx: Context, file: str, place: str, how: str) -> None:
    """Finish the job in a transaction with what it writes."""
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("CREATE TABLE IF NOT EXISTS effects (job INTEGER, attempt INTEGER)")
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO effects VALUES (?, ?)", (ctx.id, ctx.attempt))
        ctx.ack(connection=db)
        if how == "roll back":
            db.execute("ROLLBACK")
            return
        if how == "stand before":
            knock(place, "acked")
        db.execute("COMMIT")
        if how == "stand after":
            knock(place, "committed")
