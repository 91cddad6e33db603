"""The server that these tests run on: it starts when it is asked for, and nothing of it outlives them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import pgkeeper, postgres
from tests.support.children import Parent, child
from tests.support.pids import children_of, is_alive
from tests.support.postgres import Server, execute, fresh_database, fresh_url, own_server
from tests.support.waiting import eventually

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the next keeper clears up")


@pytest.fixture(autouse=True)
def _needs_a_server():
    postgres.need()


def programs() -> Path:
    found = postgres.programs()
    if found is None:
        pytest.skip("the server is another's")
    return found


def hold(parent: Parent, meeting: str | None) -> None:
    """Hold on to a server."""
    server = Server(programs(), meeting=None if meeting is None else Path(meeting))
    parent.say("holds", [server.place, server.pid])
    parent.wait_for("leave")
    server.close()
    parent.say("left")


def is_gone(place: str, pid: int) -> bool:
    return not Path(place).exists() and not is_alive(pid)


def schemas(url: str) -> set[str]:
    return {name for (name,) in execute(url, "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'ulak%'")}


def test_each_database_is_new_and_empty():
    first, second = fresh_database(), fresh_database()
    execute(first, "CREATE TABLE jobs (id int)")
    assert execute(second, "SELECT to_regclass('jobs')") == [(None,)]
    assert int(execute(first, "SHOW server_version_num")[0][0]) >= 130_000


def test_each_url_is_a_store_that_is_not_there_yet_and_old_ones_make_room(monkeypatch):
    monkeypatch.setattr(postgres, "SCHEMAS_MAX", 2)
    urls = [fresh_url() for _ in range(3)]
    names = [url.rpartition("schema=")[2] for url in urls]
    assert len(set(names)) == 3
    assert not schemas(urls[0]) & set(names)
    for name in names[1:]:
        execute(urls[0], f"CREATE SCHEMA {name}")
    fresh_url()
    assert schemas(urls[0]) & set(names) == {names[2]}


def test_a_closed_server_leaves_neither_a_process_nor_a_file():
    before = children_of()
    with own_server() as server:
        execute(server.url, "SELECT 1")
        place, pid = server.place, server.pid
        assert is_alive(pid)
    assert is_gone(place, pid)
    # Nor one that has ended and that nobody has asked for its end.
    assert children_of() == before


def test_a_server_of_root_runs_as_somebody_else():
    if os.geteuid() != 0:
        pytest.skip("not root")
    with own_server() as server:
        assert Path(f"/proc/{server.pid}").stat().st_uid != 0
        assert Path(server.place).stat().st_mode & 0o77 == 0


def test_a_killed_holder_leaves_neither_a_process_nor_a_file():
    with child(hold, None) as holder:
        place, pid = holder.hear("holds")
        holder.kill()
        eventually(lambda: is_gone(place, pid))


@linux_only
def test_a_killed_keeper_takes_its_server_along_and_the_next_one_clears_up():
    with child(hold, None) as holder:
        place, pid = holder.hear("holds")
        (keeper,) = children_of(holder.pid)
        os.kill(keeper, signal.SIGKILL)
        eventually(lambda: not is_alive(pid))
        assert Path(place).exists()
        # A directory so new may be that of a keeper which has not locked it yet.
        pgkeeper.sweep()
        assert Path(place).exists()
        os.utime(place, (0, 0))
        pgkeeper.sweep()
        assert not Path(place).exists()


def test_what_is_in_use_is_not_cleared_away(tmp_path):
    meeting = _meeting(tmp_path)
    with child(hold, str(meeting)) as holder:
        place, pid = holder.hear("holds")
        os.utime(place, (0, 0))
        pgkeeper.sweep()
        assert (Path(place).exists(), meeting.exists(), is_alive(pid)) == (True, True, True)
    eventually(lambda: is_gone(place, pid) and not meeting.exists())


def _meeting(tmp_path: Path) -> Path:
    return Path(pgkeeper.temp_root()) / f"{pgkeeper.PREFIX}{os.getpid()}-{tmp_path.name[-12:]}"


def test_all_who_meet_share_one_server_and_the_last_ends_it(tmp_path):
    meeting = str(_meeting(tmp_path))
    with contextlib.ExitStack() as holders:
        first, second, third = (holders.enter_context(child(hold, meeting)) for _ in range(3))
        place, pid = first.hear("holds")
        assert second.hear("holds") == third.hear("holds") == [place, pid]
        first.kill()
        second.tell("leave")
        assert is_alive(pid)
        third.tell("leave")
        eventually(lambda: is_gone(place, pid) and not Path(meeting).exists())
        # Whoever comes later has a server too.
        with child(hold, meeting) as late:
            again, _ = late.hear("holds")
            assert again != place


@pytest.mark.parametrize("how", sorted(pgkeeper.STOPS))
def test_a_stopped_server_starts_again_with_what_was_committed(how):
    with own_server() as server:
        execute(server.url, "CREATE TABLE kept AS SELECT 7 AS seven")
        first = server.pid
        server.stop(how)
        assert server.pid is None
        assert not is_alive(first)
        with pytest.raises(Exception, match=r"refused|No such file"):
            execute(server.url, "SELECT 1")
        server.start()
        assert server.pid != first
        assert execute(server.url, "SELECT seven FROM kept") == [(7,)]


def test_a_frozen_server_can_be_stopped():
    with own_server() as server:
        os.kill(server.pid, signal.SIGSTOP)
        server.restart("immediate")
        assert execute(server.url, "SELECT 1") == [(1,)]


@pytest.mark.parametrize(("durable", "fsync"), [(True, "on"), (False, "off")])
def test_only_a_durable_server_waits_for_the_disk(durable, fsync):
    with own_server(durable=durable) as server:
        assert execute(server.url, "SHOW fsync") == [(fsync,)]
        assert execute(server.url, "SHOW synchronous_commit") == [("on",)]


@pytest.fixture
def anywhere() -> Iterator[Path]:
    """A directory that everybody may enter."""
    with tempfile.TemporaryDirectory(dir=pgkeeper.temp_root()) as place:
        Path(place).chmod(0o755)
        yield Path(place)


@pytest.mark.parametrize(("program", "told"), [("echo no such luck; exit 1", "no such luck"), ("", "initdb")])
def test_a_server_that_cannot_start_says_why(anywhere, program, told):
    if program:
        (anywhere / "initdb").write_text(f"#!/bin/sh\n{program}\n")
        (anywhere / "initdb").chmod(0o755)
    before = children_of()
    with pytest.raises(RuntimeError, match=told):
        Server(anywhere)
    assert children_of() == before


def test_programs_of_no_wheel_that_only_root_may_enter_are_refused(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("not root")
    tmp_path.chmod(0o700)
    with pytest.raises(RuntimeError, match="nobody"):
        Server(tmp_path)


def test_programs_that_only_root_may_run_are_copied_for_the_server(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("not root")
    package = programs().parents[1]
    if package.name != pgkeeper.WHEEL:
        pytest.skip("not a wheel")
    tmp_path.chmod(0o700)
    shutil.copytree(package, tmp_path / package.name, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, tmp_path / libraries.name, symlinks=True)
    mode = tmp_path.stat().st_mode
    with contextlib.closing(Server(tmp_path / package.name / programs().parent.name / "bin")) as server:
        assert execute(server.url, "SELECT 1") == [(1,)]
    assert tmp_path.stat().st_mode == mode


def run_with_server(*command: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.support.postgres", *command],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def test_a_command_gets_a_durable_server_and_its_exit_status_is_passed_on():
    script = "import os; from tests.support.postgres import execute as e; u = os.environ['ULAK_URL']; "
    script += "print(*e(u, 'SHOW fsync')[0], *e(u, 'SHOW data_directory')[0]); raise SystemExit(7)"
    done = run_with_server("--", sys.executable, "-c", script)
    assert done.returncode == 7, done.stderr
    fsync, data = done.stdout.split()
    assert fsync == "on"
    assert not Path(data).parent.exists()


def test_a_command_that_a_signal_ended_gives_the_status_of_a_shell():
    assert run_with_server("sh", "-c", "kill -TERM $$").returncode == 128 + signal.SIGTERM


def test_without_a_command_or_programs_it_says_so(tmp_path):
    assert run_with_server().returncode == 2
    nowhere = {**os.environ, "ULAK_TEST_PG_BIN": str(tmp_path)}
    assert run_with_server("true", env=nowhere).returncode == 1
