"""A job whose every field is an attack, as a client of another kind may store one, and attacks as arguments:
through every command, in a pipe and on a terminal.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator

import pytest

from tests.cli.command import Done, Terminal
from tests.cli.everywhere import url  # noqa: F401 - a fixture
from ulak import Queue
from ulak.cli import MODULES, main
from ulak.core.job import Dead, Draft, Failure, Hold, Retry, Verdict

# A title and a colour for the terminal, a bell, lines that look like others, text from right to left, quotes
# for a shell and for SQL, markup for what draws tables, a format, and what ends a CSV cell.
ATTACK = "\x1b]0;owned\x07\x1b[41m\r\n1  mail  dead\u202e'\";DROP TABLE jobs;--[red]%s{0}\t=1+1\x9b\u2028"
TASK = f"shop.{ATTACK}"
MEGABYTE = ATTACK * (2**20 // len(ATTACK))

FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u202e]")
STYLES = re.compile("\x1b\\[(0|1|2|3|0?;?[0-9;]*)m")

LOOKS = (
    *(
        "counts",
        "ls",
        "ls --limit 1",
        "ls --state dead --error owned",
        "show 1",
        "show 1 -v",
        "show 1 --payload",
    ),
    *(
        "show 2 -vv --payload",
        "show 3",
        "show 4 -v",
        "tail --for 0s",
        "workers",
        "dead ls",
        "dead show {group}",
    ),
    *("dead retry {group}", "dead drop {group}", "dead drop 1", "retry --state dead", "retry 1", "cancel 3"),
    *(
        "cancel -q mail",
        "rm --state dead",
        "rm 1",
        "reprioritise 3 --priority 1",
        "pause mail",
        "resume mail",
    ),
    *("queue set mail --capacity 99", "prune", "prune --dry-run", "doctor", "config"),
)
CHANGES = (
    *("reprioritise 3 --priority 1 --yes", "dead export {group} -o {folder}/dead.jsonl"),
    *("dead retry 1 --yes", "cancel -q mail --yes", "retry 2 --yes", "rm --state dead --yes", "prune --yes"),
)


def attack(q: Queue, text: str = ATTACK) -> None:
    """Store jobs that died, wait, are held, and run, each full of this."""
    store = q._edge.store
    error = Failure(text[: 2**20], text, f'  File "{text}", line 1, in {text}\n')

    def draft(body: bytes, codec: str, key: str) -> Draft:
        return Draft(
            body,
            codec,
            task=TASK,
            max_attempts=3,
            headers={text[:999]: text},
            unique_key=f"{ATTACK}{key}",
            idempotency_key=f"{ATTACK}{key}",
        )

    payload = json.dumps({ATTACK: [text]}).encode()
    store.add("mail", [draft(payload, "json", "1"), draft(text.encode(), "str", "2")])
    store.add("mail", [draft(b"\xff" + text.encode(), "json", "3"), draft(payload, "json", "4")])
    leases = store.claim(["mail"], 4, worker=ATTACK, lease_s=60)
    assert len(leases) == 4
    store.extend(leases, 60, progress={lease.id: text[:999] for lease in leases})
    verdicts: list[Verdict] = [Dead(error=error), Dead(error=error), Hold(error=error), Retry(error=error)]
    store.settle(list(zip(leases, verdicts, strict=True)))
    store.add("mail", [draft(payload, "json", "5")])
    store.claim(["mail"], 1, worker=ATTACK, lease_s=60)
    store.beat(ATTACK, {"queues": f"mail,{ATTACK}", "size": ATTACK, "host": ATTACK, "since_at": ATTACK})


@pytest.fixture
def q(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:  # noqa: F811
    monkeypatch.setenv("ULAK_URL", url)
    with Queue(url, "mail") as q:
        q.counts()
        yield q


def harmless(text: str, line: str) -> None:
    """Nothing in it can do anything to a terminal, and nothing is a bug."""
    found = FORBIDDEN.search(text)
    assert found is None, (line, text[max(0, found.start() - 80) : found.end() + 20])
    assert "this is a bug in ulak" not in text, (line, text[-500:])
    assert "Traceback (most recent" not in text, line


def group_of(run: Done) -> str:
    return run.out.splitlines()[1].split()[0]


def test_a_job_that_attacks_whoever_looks_at_it_is_harmless(
    q: Queue, capsys: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    attack(q)

    def run(line: str) -> Done:
        return Done(main(line.split()), *capsys.readouterr())

    group = group_of(run("dead ls"))
    for line in (*LOOKS, *CHANGES):
        words = line.format(group=group, folder=tmp_path)
        if line in LOOKS:
            as_json = run(f"{words} --json")
            assert as_json.status in {0, 1}, (line, as_json.err[:999])
            assert as_json.out.isascii(), line
            for each in as_json.out.splitlines():
                json.loads(each)
            harmless(as_json.out + as_json.err, line)
        done = run(words)
        assert done.status in {0, 1}, (line, done.err[:999])
        harmless(done.out + done.err, line)


def test_a_megabyte_of_it_is_too(q: Queue, capsys: pytest.CaptureFixture[str]) -> None:
    if q.url.startswith("postgresql:"):
        pytest.skip("its indexes take no keys of this length")
    attack(q, MEGABYTE)
    lines = (
        "counts",
        "ls",
        "ls --json",
        "ls --error owned",
        "show 1 -v --payload",
        "show 2 --payload --json",
    )
    for line in (*lines, "tail --for 0s", "workers", "dead ls", "doctor", "retry --state dead --yes"):
        assert main(line.split()) in {0, 1}, line
        printed = capsys.readouterr()
        harmless(printed.out + printed.err, line)


@pytest.mark.parametrize("columns", ["80", "120"])
def test_it_is_on_a_terminal_too(
    q: Queue, columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    attack(q)
    monkeypatch.setenv("COLUMNS", columns)
    main(["dead", "ls"])
    group = group_of(Done(0, *capsys.readouterr()))
    for line in LOOKS:
        terminal = Terminal()
        with monkeypatch.context() as on_terminal:
            on_terminal.setattr(sys, "stdout", terminal)
            assert main(line.format(group=group).split()) in {0, 1}, line
        printed = terminal.getvalue()
        assert "\x1b[41m" not in printed, line
        harmless(STYLES.sub("", printed) + capsys.readouterr().err, line)


ARGUMENTS = (
    *("ls --task", "ls -q", "ls --error", "ls --older", "ls --state", "ls --after", "counts -q", "counts -u"),
    *(
        "show",
        "show -u sqlite:///",
        "tail -q",
        "tail --for 0s --task",
        "dead show",
        "dead retry",
        "dead drop",
        "retry",
    ),
    *(
        "cancel",
        "rm",
        "reprioritise 1 --priority",
        "pause",
        "resume",
        "queue set",
        "doctor -u",
        "doctor --late",
    ),
    *("health", "config --grace", "config -u", "work", "schedules", "demo --seed", "enqueue", "dead import"),
    *("migrate --plan -u", "migrate --grants"),
    *("enqueue --payload 1 -q", "prune -u", "bench --url", "dead export -q", "workers -u", ""),
)


@pytest.mark.parametrize("line", ARGUMENTS)
def test_an_attack_as_an_argument_is_harmless(
    q: Queue, line: str, capsys: pytest.CaptureFixture[str], tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    if q.url.startswith("postgresql:"):
        pytest.skip("a store of any kind will do")
    monkeypatch.chdir(str(tmp_path))
    attack(q)
    for text in (ATTACK, f"-{ATTACK}", f"--{ATTACK}", "9" * 5_000, "", "\ud800", MEGABYTE):
        main([*line.split(), text])
        printed = capsys.readouterr()
        harmless(printed.out + printed.err, line)
        assert len(printed.err) < 20_000


def test_every_command_is_attacked() -> None:
    attacked = {line.split()[0] for line in (*LOOKS, *CHANGES, *ARGUMENTS) if line}
    assert attacked == MODULES.keys()
