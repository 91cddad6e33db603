"""What commands that steer print, on terminals of 80 and 120 columns, in a pipe, in the plain locale."""

from __future__ import annotations

import os
import re
import tracemalloc
from pathlib import Path

import pytest

from tests.cli.command import on_terminal, told_a_reader_of_one_line, ulak
from ulak import Queue
from ulak.cli import main

STRICT_ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def die(q: Queue, payload: object = "x", error: str = "é \x1b[2Jno") -> None:
    q.enqueue(payload, 100)
    lease = q.deliver()
    assert lease is not None
    q.nack(lease, error=error)


@pytest.fixture
def store(tmp_path: Path) -> str:
    """The URL of a store with a dead job, which dead.jsonl holds, and two that wait."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    with Queue(url, "mail", max_attempts=1, capacity=100) as q:
        die(q)
        q.enqueue_many(["a", "b"])
    assert main(["dead", "export", "-u", url, "-o", str(tmp_path / "dead.jsonl")]) == 0
    return url


NOT_YET = "nothing was done yet: give --yes to do it\n"
GOLDEN = {
    "queue set mail --capacity 9 --backoff 1s,5m": (
        1,
        (
            "queue mail: 2 jobs open\n"
            "  capacity   9 instead of 100\n"
            "  backoff    base 1.00s, cap 5m 00s, floor 0s instead of none\n"
            "  succeeded  at most 100000, for 7d00h\n"
            "  dead       at most 100000, for 90d00h\n"
            "  cancelled  at most 100000, for 7d00h\n"
            "  expired    at most 100000, for 7d00h\n"
        ),
        NOT_YET,
    ),
    "pause mail": (1, "queue mail would be paused: 2 jobs wait, 0 jobs run\n", NOT_YET),
    "enqueue --payload 1 -q mail": (0, "4\n", "job 4 of queue mail; ulak show 4 tells how it goes\n"),
    "dead import dead.jsonl": (1, "1 job would be enqueued\n", NOT_YET),
    "dead import dead.jsonl --yes": (0, "1 job enqueued: 4\n", ""),
    "dead edit 1 --payload 2 --yes": (
        0,
        "1 job enqueued: 4\n",
        "job 1 stays as it is: ulak dead drop 1 removes it\n",
    ),
}


def argv(words: str, store: str, folder: Path) -> list[object]:
    return [folder / word if word == "dead.jsonl" else word for word in words.split()] + ["--url", store]


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("words", GOLDEN)
def test_what_a_terminal_shows(words: str, columns: int, store: str, tmp_path: Path) -> None:
    status, out, err = GOLDEN[words]
    on = on_terminal(*argv(words, store, tmp_path), columns=columns, env={"NO_COLOR": "1"})
    assert on == (status, f"{out}{err}".replace("\n", "\r\n"), "")
    assert max(map(len, f"{out}{err}".splitlines())) <= 80


@pytest.mark.parametrize("words", GOLDEN)
def test_what_a_pipe_gets_in_the_plain_locale(words: str, store: str, tmp_path: Path) -> None:
    done = ulak(*argv(words, store, tmp_path), env=STRICT_ASCII, encoding="ascii")
    assert (done.returncode, done.stdout, done.stderr) == GOLDEN[words]


def test_workers_in_the_plain_locale_and_on_a_terminal(store: str) -> None:
    with Queue(store, "mail") as q:
        assert q.deliver() is not None
        q._edge.store.beat("w-é\x1b[2J", {"size": "8", "queues": "mail,reports," * 9, "tasks": "app"})
        done = ulak("workers", "--url", store, env=STRICT_ASCII, encoding="ascii")
        status, shown, _ = on_terminal("workers", "--url", store, columns=80)
    assert (done.returncode, status) == (0, 0)
    assert r"w-?\x1b[2J" in done.stdout
    assert "\x1b[2J" not in done.stdout + shown
    lines = re.sub("\x1b\\[[0-9;]*m", "", shown).splitlines()
    assert max(map(len, lines)) <= 80


def test_a_payload_is_read_whatever_the_locale(store: str) -> None:
    words = ("enqueue", "-q", "mail", "--url", store, "--payload", '"gräce"')
    assert ulak(*words, env=STRICT_ASCII).returncode == 0
    with Queue(store, "mail") as q:
        assert q.jobs()[-1].payload == "gräce"


def test_a_reader_of_an_export_who_takes_one_line_and_goes(store: str) -> None:
    with Queue(store, "mail", max_attempts=1) as q:
        for _ in range(20):
            die(q, "x" * 20_000)
    assert told_a_reader_of_one_line("dead", "export", "--url", store).startswith('{"store": "sqlite-')


def test_an_export_and_an_import_hold_few_jobs_at_a_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ULAK_URL", f"sqlite:///{tmp_path}/jobs.db?durability=relaxed")
    file = tmp_path / "dead.jsonl"
    with Queue(os.environ["ULAK_URL"], "mail", max_attempts=1) as q:
        for _ in range(300):
            die(q, "x" * 100_000)
    tracemalloc.start()
    try:
        for words in (["export", "-o", str(file)], ["import", str(file)], ["import", str(file), "--yes"]):
            tracemalloc.reset_peak()
            assert main(["dead", *words]) == ("--yes" not in words and "import" in words)
            assert tracemalloc.get_traced_memory()[1] < 25_000_000
    finally:
        tracemalloc.stop()
    assert file.stat().st_size > 30_000_000
    assert "300 jobs enqueued: 301, 302" in capsys.readouterr().out
