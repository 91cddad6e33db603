"""`ulak work --health` and `ulak health`: what probes are told, and that nobody can keep the listener."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest

from tests.cli.working import Caller, Refused, Work
from tests.support.commands import Command
from tests.support.doors import Door
from tests.support.pids import children_of
from tests.support.waiting import WAIT_S, eventually
from ulak import App, StorageGone
from ulak.cli import health_server, main
from ulak.cli.health_server import Answer, Listener
from ulak.cli.options import Address, address
from ulak.cli.work_health import LIVE_S, of_process

PATHS = ("/livez", "/readyz", "/startupz", "/metrics")


def ask(where: str, path: str, method: str = "GET") -> tuple[int, str]:
    line = http.client.HTTPConnection(where, timeout=WAIT_S)
    with contextlib.closing(line):
        line.request(method, path)
        answer = line.getresponse()
        return answer.status, answer.read().decode()


def where_of(worker: Command) -> str:
    """Where it says that it answers."""
    return worker.err.next().rpartition("; health ")[2]


def comes(where: str, path: str, status: int) -> str:
    eventually(lambda: ask(where, path)[0] == status)
    return ask(where, path)[1]


# One process


def test_a_worker_answers_all_four(work: Work, caller: Caller) -> None:
    where = where_of(work("hello:app", "--health", ":0", ready=False))
    assert where.startswith("127.0.0.1:")
    assert caller.welcome.enqueue("ada").result(WAIT_S) == "welcome ada"
    # First of all: one that has not begun lives too.
    assert comes(where, "/startupz", 200) == "ok     keeper: it has begun\n"
    assert "ok     keeper: it went round" in comes(where, "/livez", 200)
    assert comes(where, "/readyz", 200).splitlines() == [
        "ok     workers: they take jobs",
        "ok     store: it answers",
        "ok     schema: of this version",
    ]
    told = comes(where, "/metrics", 200)
    assert 'ulak_jobs_succeeded_total{queue="default"} 1.0' in told
    assert 'ulak_job_run_seconds_count{queue="default",task="hello.welcome"} 1.0' in told


def test_one_that_drains_is_not_ready_and_lives(work: Work, caller: Caller, gate: Door) -> None:
    worker = work("hello:app", "--health", ":0", ready=False)
    where = where_of(worker)
    caller.stand.enqueue(gate.place)
    guest = gate.guest()
    worker.signal(signal.SIGTERM)
    assert "failed workers: they take no more jobs" in comes(where, "/readyz", 503)
    assert ask(where, "/livez")[0] == 200
    guest.let_go()
    assert worker.ended() == 0


def test_a_store_that_was_removed_is_told_of_by_readyz_alone(folder: Path) -> None:
    app = App(f"sqlite:///{folder}/jobs.db")
    app.task(name="nothing")(print)
    pool = app.workers(1)
    looked = False
    with contextlib.suppress(StorageGone), app, of_process(Address("127.0.0.1", 0), app, pool) as text:
        where = text.rpartition(" ")[2]
        assert ask(where, "/readyz")[0] == 503
        assert ask(where, "/startupz") == (503, "failed keeper: it has not begun\n")
        pool.start()
        comes(where, "/readyz", 200)
        (folder / "jobs.db").rename(folder / "gone.db")
        assert "failed store" in comes(where, "/readyz", 503)
        assert ask(where, "/livez")[0] == 200
        looked = True
        pool.shutdown(0)
    assert looked


class Silent:
    """A pool whose keeper has gone its last round."""

    takes_jobs = True
    silent_s: float | None = LIVE_S + 1


def test_a_keeper_that_stands_still_does_not_live() -> None:
    app = App()
    pool = Silent()
    with app, of_process(Address("127.0.0.1", 0), app, pool) as text:  # type: ignore[arg-type]
        where = text.rpartition(" ")[2]
        assert ask(where, "/livez") == (503, "failed keeper: it went round 31.0 s ago\n")
        pool.silent_s = LIVE_S - 1
        assert ask(where, "/livez")[0] == 200


def test_without_the_library_metrics_say_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ulak.telemetry.prometheus", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    app = App()
    with app, of_process(Address("127.0.0.1", 0), app, Silent()) as text:  # type: ignore[arg-type]
        status, told = ask(text.rpartition(" ")[2], "/metrics")
    assert (status, told) == (503, "metrics need prometheus-client: pip install 'ulak[web]'\n")
    assert not app._events.is_heard


# Several


def test_a_fleet_is_asked_at_one_place(work: Work, caller: Caller) -> None:
    worker = work("hello:app", "--processes", "2", "--health", ":0", ready=False)
    where = where_of(worker)
    assert caller.welcome.enqueue("ada").result(WAIT_S) == "welcome ada"
    eventually(lambda: ask(where, "/readyz")[1].startswith("ok     workers: processes that take jobs: 2\n"))
    assert comes(where, "/readyz", 200).count("ok") == 3
    assert "process 2: it said" in comes(where, "/livez", 200)
    comes(where, "/startupz", 200)
    told = comes(where, "/metrics", 200)
    assert 'ulak_jobs_succeeded_total{queue="default"} 1.0' in told
    assert 'backend="sqlite"' in told
    assert "ulak_acks_stale" not in told


def test_a_process_of_a_fleet_that_stands_still_is_told_of(
    work: Work, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = work("hello:app", "--processes", "2", "--health", ":0", ready=False)
    where = where_of(worker)
    eventually(lambda: ask(where, "/livez")[1].count("process ") == 2)
    stopped = children_of(worker.pid)[0]
    os.kill(stopped, signal.SIGSTOP)

    def longest() -> float:
        lines = [line for line in ask(where, "/livez")[1].splitlines() if "process" in line]
        return max(float(line.split(" it said ")[1].split()[0]) for line in lines)

    eventually(lambda: longest() > 2.5)
    os.kill(stopped, signal.SIGCONT)
    eventually(lambda: longest() < 2.5)


# The command


def test_health_asks_and_its_status_is_the_answer(work: Work, capsys: pytest.CaptureFixture[str]) -> None:
    where = where_of(work("hello:app", "--health", ":0", ready=False))
    for said in (["--live", where], ["--ready", f"http://{where}"], [f":{where.rpartition(':')[2]}"]):
        eventually(lambda said=said: main(["health", *said]) == 0)
    capsys.readouterr()
    assert main(["health", where]) == 0
    assert capsys.readouterr().out.count("ok ") == 3


def test_health_of_a_worker_that_drains_or_is_gone_is_1(
    work: Work, caller: Caller, gate: Door, capsys: pytest.CaptureFixture[str]
) -> None:
    worker = work("hello:app", "--health", ":0", ready=False)
    where = where_of(worker)
    caller.stand.enqueue(gate.place)
    guest = gate.guest()
    worker.signal(signal.SIGTERM)
    eventually(lambda: main(["health", where]) == 1)
    assert "they take no more jobs" in capsys.readouterr().err
    assert main(["health", "--live", where]) == 0
    guest.let_go()
    worker.ended()
    assert main(["health", "--live", where]) == 1
    assert capsys.readouterr().err == f"nobody answers at {where}: Connection refused\n"


# What an address is


@pytest.mark.parametrize(
    ("text", "means"),
    [
        (":9100", "127.0.0.1:9100"),
        ("9100", "127.0.0.1:9100"),
        ("0.0.0.0:9100", "0.0.0.0:9100"),
        ("[::1]:9100", "[::1]:9100"),
    ],
)
def test_an_address_without_a_host_is_of_this_machine(text: str, means: str) -> None:
    assert str(address(text)) == means


@pytest.mark.parametrize("text", ["", "localhost", ":", ":70000", ":-1", ":٣"])
def test_what_is_no_address_is_refused(refused: Refused, text: str) -> None:
    status, lines = refused("hello:app", "--health", text)
    assert status == 2
    assert "address" in lines[0]


def test_a_port_that_others_have_is_said_before_the_first_job(refused: Refused) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        for more in ([], ["--processes", "2"]):
            status, lines = refused("hello:app", "--health", where, *more)
            assert status == 2
            assert lines[0] == f"error U302: cannot listen on {where}: Address already in use"


# The listener


def test_an_answer_that_comes_a_byte_at_a_time_has_the_same_time_in_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            line, _ = server.accept()
            until = time.monotonic() + 5.0
            with line, contextlib.suppress(OSError):
                line.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                while time.monotonic() < until:
                    line.sendall(b"x")
                    time.sleep(0.01)

        dripping = threading.Thread(target=drip)
        dripping.start()
        where = f"127.0.0.1:{server.getsockname()[1]}"
        status = main(["health", where, "--timeout", "100ms"])
        dripping.join()
    said = capsys.readouterr()
    assert (status, said.out) == (1, "")
    assert said.err == f"nobody answers at {where}: it took more than 100ms\n"
    assert main(["health", where, "--timeout", "0s"]) == 1
    assert capsys.readouterr().err == f"nobody answers at {where}: it took more than 0s\n"


@pytest.fixture
def listener() -> Iterator[Listener]:
    def fail() -> Answer:
        raise RuntimeError

    routes = {"/yes": lambda: Answer(HTTPStatus.OK, b"yes\n"), "/fail": fail}
    with Listener(Address("127.0.0.1", 0), routes) as made:
        yield made


def raw(listener: Listener, told: bytes) -> bytes:
    with socket.create_connection(listener.address, WAIT_S) as line:
        line.sendall(told)
        got = b""
        with contextlib.suppress(ConnectionResetError):  # it had more to read than it wanted
            while read := line.recv(4096):
                got += read
    return got


def test_it_answers_get_and_head_of_what_it_has_and_nothing_else(listener: Listener) -> None:
    where = str(listener.address)
    assert ask(where, "/yes") == ask(where, "/yes?x=1") == (200, "yes\n")
    assert ask(where, "/yes", "HEAD") == (200, "")
    assert ask(where, "/no") == (404, "there is /yes, /fail\n")
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask(where, "/yes", method)[0] == 405


@pytest.mark.parametrize(
    "told", [b"yes\r\n\r\n", b"\r\n\r\n", b"GET /yes\r\n\r\n", b"\xff\x00 \xff x\r\n\r\n"]
)
def test_what_is_no_request_is_a_bad_one(listener: Listener, told: bytes) -> None:
    assert raw(listener, told).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("told", [b"GET /" + b"x" * 9000, b"GET /yes HTTP/1.1\r\n" + b"a: b\r\n" * 2000])
def test_a_long_head_is_refused_and_not_kept(listener: Listener, told: bytes) -> None:
    assert raw(listener, told)[:13] in (b"HTTP/1.1 431 ", b"")


def test_what_fails_is_said_and_the_next_is_answered(listener: Listener, caplog) -> None:
    for _ in range(2 * health_server.THREADS):
        assert ask(str(listener.address), "/fail") == (500, "internal server error\n")
    assert ask(str(listener.address), "/yes")[0] == 200
    assert "/fail could not be answered" in caplog.text


def test_clients_that_say_nothing_or_a_byte_at_a_time_cannot_keep_it(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_server, "REQUEST_S", 0.3)
    with contextlib.ExitStack() as lines:
        slow = [
            lines.enter_context(socket.create_connection(listener.address, WAIT_S))
            for _ in range(health_server.THREADS)
        ]
        ended = threading.Event()

        def drip() -> None:
            while not ended.wait(0.05):
                with contextlib.suppress(OSError):
                    slow[0].sendall(b"x")

        dripping = threading.Thread(target=drip)
        dripping.start()
        began = time.monotonic()
        assert ask(str(listener.address), "/yes")[0] == 200
        assert time.monotonic() - began < 5
        ended.set()
        dripping.join()


def test_one_that_is_closed_answers_nobody(listener: Listener) -> None:
    listener.__exit__(None, None, None)
    with pytest.raises(ConnectionRefusedError):
        ask(str(listener.address), "/yes")
