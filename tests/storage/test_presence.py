"""A process's presence: who lives, who is gone, and what must not make the one look like the other."""

from __future__ import annotations

import math
import os
import secrets
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.support.waiting import eventually
from ulak.core.job import Draft, Lease
from ulak.core.store import Settings
from ulak.errors import StorageUnavailable
from ulak.storage.sqlite.presence import Presence
from ulak.storage.sqlite.store import SqliteStore

_CHILD = """
import os, signal, sys, time
from pathlib import Path
from ulak.storage.sqlite.presence import Presence
presence = Presence(Path(sys.argv[1]))
presence.take()
if "forks" in sys.argv:
    if os.fork() == 0:
        os.write(1, f"child {os.getpid()}{os.linesep}".encode())
        time.sleep(60)
        os._exit(0)
os.write(1, f"token {presence.token}{os.linesep}".encode())
sys.stdin.read()
if "drops" in sys.argv:
    presence.drop()
"""


@contextmanager
def _holder(directory: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """A process that is present; and what it said of itself."""
    command = [sys.executable, "-c", _CHILD, str(directory), *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said: dict[str, str] = {}
        try:
            while len(said) < 1 + ("forks" in words):
                name, value = process.stdout.readline().split()
                said[name] = value
            yield process, said
        finally:
            if process.poll() is None:
                process.kill()
            if "child" in said:
                os.kill(int(said["child"]), signal.SIGKILL)


def _file(directory: Path, token: str) -> Path:
    return directory / f"{token}.lock"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db-workers"


@pytest.fixture
def watcher(directory: Path) -> Iterator[Presence]:
    presence = Presence(directory)
    presence.take()
    yield presence
    presence.drop()


def test_nothing_is_made_before_it_is_taken(directory):
    presence = Presence(directory)
    assert not directory.exists()
    assert not presence.is_present(presence.token)
    assert presence.token != Presence(directory).token


def test_its_file_is_private_and_goes_with_it(directory):
    presence = Presence(directory)
    presence.take()
    presence.take()
    path = _file(directory, presence.token)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert presence.is_present(presence.token)
    presence.drop()
    presence.drop()
    assert not path.exists()
    assert not presence.is_present(presence.token)


def test_a_living_process_is_present_and_a_killed_one_is_gone_at_once(directory, watcher):
    with _holder(directory) as (process, said):
        token = said["token"]
        assert watcher.is_present(token)
        process.kill()
        process.wait()
        assert not watcher.is_present(token)


def test_a_process_that_ends_normally_leaves_no_file(directory, watcher):
    with _holder(directory, "drops") as (process, said):
        process.communicate()
        assert process.returncode == 0
        assert not watcher.is_present(said["token"])
        assert not _file(directory, said["token"]).exists()


def test_a_frozen_process_is_present(directory, watcher):
    with _holder(directory) as (process, said):
        process.send_signal(signal.SIGSTOP)
        eventually(lambda: os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED | os.WNOHANG)[1]))
        assert watcher.is_present(said["token"])


def test_a_surviving_child_does_not_keep_a_killed_process_present(directory, watcher):
    with _holder(directory, "forks") as (process, said):
        assert watcher.is_present(said["token"])
        process.kill()
        process.wait()
        os.kill(int(said["child"]), 0)
        assert not watcher.is_present(said["token"])


def test_two_of_one_process_do_not_drop_each_others_lock(directory):
    one, other = Presence(directory), Presence(directory)
    one.take()
    other.take()
    for presence in (one, other):
        # Any of these would, by opening the other's file and closing it again.
        assert presence.is_present(one.token)
        assert presence.is_present(other.token)
        presence.forget(one.token)
        presence.forget(other.token)
        presence.take()
    assert _seen_by_another_process(directory, one.token, other.token) == "True True"
    one.drop()
    assert _seen_by_another_process(directory, one.token, other.token) == "False True"
    other.drop()


def _seen_by_another_process(directory: Path, *tokens: str) -> str:
    code = """
import sys
from pathlib import Path
from ulak.storage.sqlite.presence import Presence
presence = Presence(Path(sys.argv[1]))
print(*map(presence.is_present, sys.argv[2:]))
"""
    command = [sys.executable, "-c", code, str(directory), *tokens]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


# A fork in a process of its own: the one that runs the tests may have threads.
_FORKS = """
import os, sys
from pathlib import Path
from ulak.storage.sqlite.presence import Presence
presence = Presence(Path(sys.argv[1]))
presence.take()
parent = presence.token
if os.fork() == 0:
    facts = []
    if "after_fork" in sys.argv:
        presence.after_fork()
    if "drop" in sys.argv:
        presence.drop()
    mine = presence.token
    facts += [mine != parent, not presence.is_present(mine), presence.is_present(parent)]
    presence.take()
    presence.after_fork()
    facts += [presence.token == mine, presence.is_present(mine), presence.is_present(parent)]
    presence.drop()
    facts += [presence.is_present(parent)]
    os.write(1, (" ".join(map(str, facts)) + os.linesep).encode())
    os._exit(0)
os.wait()
os.write(1, f"token {parent}{os.linesep}".encode())
sys.stdin.read()
"""


@pytest.mark.parametrize("words", [("after_fork",), ("drop",), ()])
def test_a_forked_child_is_somebody_else_and_leaves_its_parent_present(directory, watcher, words):
    command = [sys.executable, "-c", _FORKS, str(directory), *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().split() == ["True"] * 7
        token = process.stdout.readline().split()[1]
        assert _file(directory, token).exists()
        assert watcher.is_present(token)


def test_a_forked_child_sees_that_its_parent_is_gone(directory):
    code = """
import os, sys
from pathlib import Path
from ulak.storage.sqlite.presence import Presence
presence = Presence(Path(sys.argv[1]))
presence.take()
parent = presence.token
reader, writer = os.pipe()
if os.fork() == 0:
    os.close(writer)
    os.read(reader, 1)
    print(presence.is_present(parent), flush=True)
"""
    command = [sys.executable, "-c", code, str(directory)]
    # The output ends with the child, which first reads to the end of a pipe that only its parent can write.
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "False\n"


def test_a_gone_process_is_forgotten_and_a_living_one_is_not(directory, watcher):
    with _holder(directory) as (process, said):
        token = said["token"]
        watcher.forget(token)
        assert watcher.is_present(token)
        process.kill()
        process.wait()
        watcher.forget(token)
        watcher.forget(token)
        assert not _file(directory, token).exists()


def test_those_who_look_at_one_moment_do_not_take_each_other_for_the_holder(directory, watcher):
    with _holder(directory) as (process, said):
        process.kill()
        process.wait()
        token = said["token"]
        seen = []
        start = threading.Barrier(3, timeout=20.0)

        def in_child() -> list[bool]:
            return [Presence(directory).is_present(token) for _ in range(2_000)]

        def look() -> None:
            start.wait()
            seen.append(_in_a_separate_process(directory, token))

        threads = [threading.Thread(target=look) for _ in range(2)]
        for thread in threads:
            thread.start()
        start.wait()
        assert not any(in_child())
        for thread in threads:
            thread.join()
        assert seen == ["0", "0"]


def _in_a_separate_process(directory: Path, token: str) -> str:
    """How often a process that looks 2,000 times finds it present."""
    code = """
import sys
from pathlib import Path
from ulak.storage.sqlite.presence import Presence
presence = Presence(Path(sys.argv[1]))
print(sum(presence.is_present(sys.argv[2]) for _ in range(2_000)))
"""
    command = [sys.executable, "-c", code, str(directory), token]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize(
    "token",
    [
        "",
        "../../etc/passwd",
        "A" * 32,
        "a" * 31,
        "a" * 33,
        "a" * 31 + "\n",
        "a" * 32 + "\n",
        "é" * 32,
        "0" * 9999,
        b"a" * 32,
        7,
        None,
    ],
)
def test_what_is_no_token_is_gone_and_never_a_file_name(tmp_path, token):
    directory = tmp_path / "deep" / "workers"
    directory.mkdir(parents=True)
    victim = tmp_path / "etc" / "passwd.lock"
    victim.parent.mkdir()
    victim.touch()
    presence = Presence(directory)
    assert not presence.is_present(token)
    presence.forget(token)
    assert victim.exists()


def test_what_stands_in_the_place_of_a_file_is_not_followed_and_is_no_reason_to_hang(directory, watcher):
    link, pipe = secrets.token_hex(16), secrets.token_hex(16)
    target = directory / "target"
    target.touch()
    _file(directory, link).symlink_to(target)
    os.mkfifo(_file(directory, pipe))
    for token in (link, pipe):
        watcher.is_present(token)
        watcher.forget(token)
    assert watcher.is_present(link), "where it cannot be told, the deadline decides"
    assert target.exists()


def test_a_removed_file_is_made_again_with_the_same_token(directory, watcher):
    had = watcher.token
    _file(directory, had).unlink()
    assert _seen_by_another_process(directory, had) == "False"
    watcher.take()
    assert watcher.token == had
    assert _seen_by_another_process(directory, had) == "True"


def test_taking_sweeps_what_killed_processes_left_and_nothing_else(directory, watcher):
    left = _file(directory, secrets.token_hex(16))
    left.touch()
    note = directory / "note.lock"
    note.touch()
    with _holder(directory) as (_, said):
        assert not left.exists()
        assert note.exists()
        another = Presence(directory)
        another.take()
        assert another.is_present(said["token"])
        another.drop()
        assert _seen_by_another_process(directory, said["token"], watcher.token) == "True True"


def test_how_a_process_has_ended_is_told_where_its_parent_has_noted_it(directory, watcher):
    watcher.take()
    for noted, told in (("by SIGKILL", "by SIGKILL"), ("with status 3", "with status 3"), ("\x1b[31m", "")):
        with _holder(directory) as (process, said):
            file = directory / f"{said['token']}.lock"
            process.kill()
            process.wait()
            assert watcher.end_of(said["token"]) == ""
            file.write_text(noted)
            assert watcher.end_of(said["token"]) == told
            # Whoever starts meanwhile leaves it to who reclaims.
            Presence(directory).take()
            assert file.exists()
            os.utime(file, (1, 1))
            Presence(directory).take()
            assert not file.exists()
    assert watcher.end_of(watcher.token) == ""
    assert watcher.end_of("../../etc/passwd") == ""


def test_processes_that_start_at_once_all_end_up_present(directory):
    """Each sweeps while others are between making their file and locking it."""
    code = """
import sys
from pathlib import Path
from ulak.storage.sqlite.presence import Presence
for _ in range(300):
    presence = Presence(Path(sys.argv[1]))
    presence.take()
    assert presence._is_named()
    presence.drop()
"""
    command = [sys.executable, "-c", code, str(directory)]
    processes = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert list(directory.iterdir()) == []


def test_a_directory_that_cannot_be_used_says_what_to_do(tmp_path):
    in_the_way = tmp_path / "workers"
    in_the_way.touch()
    presence = Presence(in_the_way)
    with pytest.raises(StorageUnavailable, match="make the directory writable"):
        presence.take()
    assert not presence.is_present(presence.token)


def test_threads_may_share_one(directory, watcher):
    start = threading.Barrier(4, timeout=20.0)
    problems = []

    def use() -> None:
        start.wait()
        for _ in range(200):
            watcher.take()
            if not watcher.is_present(watcher.token) or watcher.is_present(secrets.token_hex(16)):
                problems.append("taken for another")

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert [path.name for path in directory.iterdir()] == [f"{watcher.token}.lock"]


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[list[SqliteStore]]:
    """Three stores on one file, each as a process of its own would have it."""
    opened = [SqliteStore(str(tmp_path / "jobs.db")) for _ in range(3)]
    for store in opened:
        store.open()
    opened[0].declare("mail", Settings())
    yield opened
    for store in opened:
        store.close()


def _claim(store: SqliteStore) -> Lease:
    """A lease, of a job of its own, that lasts for ever."""
    store.add("mail", [Draft(payload=b"x", codec="bytes")])
    [lease] = store.claim(["mail"], 1, worker="w", lease_s=1e6)
    return lease


def test_a_new_process_is_never_taken_for_one_that_was_gone_before_it(tmp_path, stores):
    looking, other, new = stores
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as db:
        row = (secrets.token_hex(16), 1, 0.0, 0.0)
        db.execute("INSERT INTO holders (token, pid, since_at, absent_since) VALUES (?, ?, ?, ?)", row)
        db.commit()
    assert len(looking.others.gone()) == 1
    other.prune()
    _claim(new)
    # However late it acts on what it saw: it may have been frozen meanwhile.
    looking.others._looked_at = math.inf
    assert looking.others._gone
    assert looking.ended(["mail"], 10) == []


def test_a_process_whose_file_was_removed_is_present_again_at_its_next_look(tmp_path, stores):
    losing, looking, _ = stores
    _claim(losing)
    for path in (tmp_path / "jobs.db-workers").iterdir():
        path.unlink()
    losing.ended(["mail"], 10)
    assert len(list((tmp_path / "jobs.db-workers").iterdir())) == 1
    for store in (losing, looking):
        store.others._looked_at = -math.inf
        assert store.ended(["mail"], 10) == []
