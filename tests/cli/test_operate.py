"""Each case of docs/how-to/operate.md, walked through with the commands that it names, on every storage."""

from __future__ import annotations

import re
import shlex
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.command import Done
from tests.cli.everywhere import url  # noqa: F401 - a fixture
from tests.support.waiting import eventually
from ulak import App, Backoff, Cancel, Context, Queue, State
from ulak.cli import inspect_file, main, read

PAGE = (Path(__file__).parents[2] / "docs/how-to/operate.md").read_text()
SECTIONS = (
    "A worker is stuck",
    "A queue is paused",
    "A store is full",
    "A task is unknown",
    "500 dead letters after a bad deploy",
)
AT_ONCE = Backoff(base=0.001, cap=0.001)

Walk = Callable[[str], Done]


def blocks(section: str) -> list[list[str]]:
    """The commands of a section, block by block."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [[line.partition(" #")[0].strip() for line in block.splitlines()] for block in found]


@pytest.fixture
def walk(
    url: str,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Walk:
    """Run a line of the page in this process, on the store."""
    monkeypatch.setenv("ULAK_URL", url)
    monkeypatch.chdir(tmp_path)

    def go(line: str) -> Done:
        status = main(shlex.split(line)[1:])
        return Done(status, *capsys.readouterr())

    return go


def all_go_well(walk: Walk, lines: list[str]) -> list[str]:
    """Run them; what each has printed."""
    done = [walk(line) for line in lines]
    assert [one.status for one in done] == [0] * len(lines), done
    return [one.out for one in done]


def shown(walk: Walk, lines: list[str]) -> str:
    """Run them, all of which only look; what they have printed, as one line."""
    done = [walk(line) for line in lines]
    # One that has found something says so by its status.
    assert {one.status for one in done} <= {0, 1}
    return " ".join("".join(one.out for one in done).split())


def test_the_page_has_these_cases_and_no_other_and_each_line_can_be_read() -> None:
    assert tuple(re.findall(r"^## (.*)$", PAGE, re.MULTILINE)) == SECTIONS
    lines = [line for section in SECTIONS for block in blocks(section) for line in block]
    assert len(lines) >= 20
    for line in lines:
        assert read(shlex.split(line)[1:]) is not None


def test_a_worker_that_is_stuck(walk: Walk, url: str) -> None:  # noqa: F811
    look, mend = blocks("A worker is stuck")
    never = threading.Event()

    def hang(_: str, ctx: Context) -> None:
        ctx.progress(1, 9, "where it hangs")
        while not ctx.cancelled:
            never.wait(0.01)
        raise Cancel("asked to stop")

    with Queue(url, "mail") as q:
        job_id = q.enqueue("x")
        with q.workers(hang, count=1):
            eventually(lambda: q._edge.store.workers() and q.counts().leased == 1)
            eventually(lambda: "where it hangs" in walk(look[2]).out)
            workers, leased, _ = all_go_well(walk, look)
            assert f"{job_id}  mail" in workers
            assert "live" in workers
            assert "leased" in leased
            (asks,) = all_go_well(walk, mend)
            assert "1 job" in asks
            eventually(lambda: q.counts().cancelled == 1)


def test_a_frozen_worker_is_killed_before_another_is_started() -> None:
    frozen = PAGE.partition("A worker that is *stale*")[2].partition("\n## ")[0]
    assert frozen.index("Kill") < frozen.index("start one")


def test_a_queue_that_is_paused(walk: Walk, url: str) -> None:  # noqa: F811
    look, mend = blocks("A queue is paused")
    with Queue(url, "mail") as q:
        q.enqueue("x")
        q.pause()
        seen = shown(walk, look)
        assert "queue mail is paused, with 1 job due" in seen
        all_go_well(walk, mend)
        assert q.deliver() is not None


def test_a_store_that_is_full(walk: Walk, url: str, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    look, more_room, look_at_disk, keep_less = blocks("A store is full")
    with Queue(url, "mail", capacity=1000) as q:
        q.enqueue_many(["x"] * 1000)
        assert not q.try_enqueue("one more")
        assert re.search(r"mail 1000 .* 1000 1000 no ", shown(walk, look))
        all_go_well(walk, more_room)
        assert q.try_enqueue("one more")
        # The disk has room for this, so what is too little is made more.
        monkeypatch.setattr(inspect_file, "FREE_BYTES_MIN", 2**62)
        q.ack_many(q.deliver_many(1000))
        seen = shown(walk, look_at_disk)
        # A server does not tell of its disk.
        assert not url.startswith("sqlite:") or "its disk has only" in seen
        setting, would, does = all_go_well(walk, keep_less)
        assert "succeeded  at most 100" in setting
        assert would.startswith("900 jobs would be pruned")
        assert does.startswith("900 jobs are pruned")
        assert q.counts().acked == 100


def test_a_task_that_is_unknown(walk: Walk, url: str) -> None:  # noqa: F811
    look, (start,), end = blocks("A task is unknown")
    welcomed: list[str] = []
    old = App(url, queues=["mail"])

    @old.task(name="shop.welcome")
    def welcome(to: str) -> None:
        welcomed.append(to)

    @old.task(name="shop.goodbye")
    def goodbye(to: str) -> None: ...

    def works(app: App) -> None:
        assert read(shlex.split(start)[1:]) is not None
        with app.workers(count=1) as pool:
            eventually(lambda: (found := app.queue("mail").counts()).ready == 0 == found.leased)
            pool.shutdown()

    with old:
        welcome.enqueue("ada")
        goodbye.enqueue("grace")
        with App(url, queues=["mail"]) as forgetful:
            forgetful.task(name="shop.other")(print)
            works(forgetful)
            seen = shown(walk, look)
            assert "knows their task: shop.welcome (1 in mail), shop.goodbye (1 in mail)" in seen
        with App(url, queues=["mail"]) as deployed:
            deployed.task(name="shop.welcome")(welcome.function)
            with deployed.workers(count=1):
                eventually(lambda: welcomed == ["ada"])
        all_go_well(walk, end)
        counts = old.queue("mail").counts()
        assert (counts.held, counts.acked, counts.cancelled) == (0, 1, 1)


def fail_all(q: Queue, number: int, error: Exception) -> None:
    """Have so many jobs die of this."""
    q.enqueue_many(["x"] * number)

    def fails(_: str) -> None:
        raise error

    with q.workers(fails, count=2, backoff=AT_ONCE):
        eventually(lambda: q.counts().dead >= number)


def test_500_dead_letters(walk: Walk, url: str, tmp_path: Path) -> None:  # noqa: F811
    look, retry, remove = blocks("500 dead letters after a bad deploy")
    on_page = look[1].split()[3]
    with Queue(url, "mail", max_attempts=1) as q:
        fail_all(q, 500, KeyError("region"))
        groups = walk(look[0]).out.splitlines()
        assert len(groups) == 2
        fingerprint, jobs, *_ = groups[1].split()
        assert jobs == "500"
        now = [[line.replace(on_page, fingerprint) for line in block] for block in (look, retry, remove)]
        _, some, one = all_go_well(walk, now[0])
        assert len(some.splitlines()) == 6
        assert ".fails" in one
        first, _, rest = now[1]
        assert "3 jobs" in all_go_well(walk, [first])[0]
        with q.workers(lambda _: None, count=2):
            eventually(lambda: q.counts().acked == 3)
            assert "497 jobs" in all_go_well(walk, [rest])[0]
            eventually(lambda: q.counts().acked == 500)
        assert q.counts().dead == 0
        fail_all(q, 2, KeyError("region"))
        all_go_well(walk, now[2])
        assert (tmp_path / "dead.jsonl").read_text().count("\n") == 2
        assert q.jobs(state=State.DEAD) == []
