"""`ulak counts --since`: what a store's history tells, as lines of blocks, as columns, as JSON."""

from __future__ import annotations

import io
import itertools
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Terminal, lines_of, on_terminal, ulak
from ulak import Queue
from ulak.cli import inspect_trend
from ulak.cli.inspect_open import Missing
from ulak.core.history import Took
from ulak.errors import ConfigError
from ulak.metrics import bucket_of
from ulak.testing import ManualClock

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = "_.:=+*#@"
STRICT_ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

_numbers = itertools.count(1)


class Scene:
    """A store whose queue "mail" has work that is recorded each minute; "idle" has none."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        url = f"memory://trend-{next(_numbers)}"
        self.mail = Queue(url, "mail", max_attempts=1, clock=self.clock)
        self.idle = Queue(url, "idle", clock=self.clock)
        self.mail.counts()
        self.idle.counts()
        self.edge = self.mail._edge

    def minute(self, done: int = 0, dead: int = 0, waiting: int = 0, *run_s: float) -> None:
        """What happens in a minute, which is recorded at its end."""
        for number in range(done + dead):
            self.mail.enqueue(number)
            lease = self.mail.deliver()
            assert lease is not None
            if number < done:
                self.mail.ack(lease)
            else:
                self.mail.nack(lease, error="no")
        for number in range(waiting):
            self.mail.enqueue(number)
        self.clock.advance(60.0)
        buckets = Counter(map(bucket_of, run_s))
        self.edge.store.record({"mail": Took(wait=buckets, run=buckets), "idle": Took()})


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.mail.close()
    scene.idle.close()


def past(scene: Scene, since_s: float = 240.0, queue: str | None = None) -> inspect_trend.Past:
    return inspect_trend.past_of(scene.edge, since_s, queue)


def busy(scene: Scene) -> None:
    scene.minute()
    scene.minute(7, 0, 0, 0.1, 0.1, 0.1)
    scene.minute(3, 1, 2, 0.1, 4.0)
    scene.minute()
    scene.minute(14, 2, 0, 0.1)


def test_a_pipe_gets_a_line_a_queue_with_its_lines_as_columns(scene: Scene) -> None:
    busy(scene)
    out = io.StringIO()
    inspect_trend.print_past(past(scene), blocks=BLOCKS, to=out)
    assert [" ".join(line.split()) for line in lines_of(out)] == [
        (
            "queue enqueued succeeded failed dead wait_p50 wait_p95 run_p50 run_p95 "
            "enqueued_each_1m succeeded_each_1m failed_each_1m"
        ),
        "idle 0 0 0 0 - - - - ▁▁▁▁ ▁▁▁▁ ▁▁▁▁",
        "mail 29 24 3 3 100ms 4.16s 100ms 4.16s ▅▄▁█ ▅▃▁█ ▁▅▁█",
    ]


def test_a_terminal_gets_a_line_a_kind_and_how_much_its_highest_point_is(scene: Scene) -> None:
    busy(scene)
    out = Terminal()
    inspect_trend.print_past(past(scene, queue="mail"), blocks=ASCII, to=out)
    assert [" ".join(line.split()) for line in lines_of(out)] == [
        "queue enqueued succeeded failed dead wait p50 wait p95 run p50 run p95",
        "mail 29 24 3 3 100ms 4.16s 100ms 4.16s",
        "",
        "queue each 1m most",
        "mail enqueued +=_@ 16",
        "mail succeeded +:_@ 14",
        "mail failed _+_@ 2",
    ]


def test_json_has_the_numbers_of_the_whole_and_of_each_slice(scene: Scene) -> None:
    busy(scene)
    answer: Any = json.loads(json.dumps(inspect_trend.as_json(past(scene, queue="mail"))))
    mail = answer["queues"]["mail"]
    assert (answer["step_s"], len(mail["slices"])) == (60.0, 4)
    numbers = ("enqueued", "succeeded", "failed", "retries", "dead_lettered")
    assert [mail[name] for name in numbers] == [29, 24, 3, 0, 3]
    assert [[one[name] for name in numbers] for one in mail["slices"]] == [
        [7, 7, 0, 0, 0],
        [6, 3, 1, 0, 1],
        [0, 0, 0, 0, 0],
        [16, 14, 2, 0, 2],
    ]
    assert mail["slices"][0]["from"] == mail["from"]
    assert mail["slices"][-1]["until"] == mail["until"]
    assert mail["run_p50_s"] == pytest.approx(0.1, rel=0.04)
    assert mail["slices"][1]["wait_p99_s"] == pytest.approx(4.0, rel=0.04)
    assert mail["slices"][2]["run_p95_s"] is None


def test_what_has_happened_since_the_last_record_is_in_it(scene: Scene) -> None:
    busy(scene)
    scene.mail.enqueue_many(["x"] * 5)
    scene.clock.advance(30.0)
    whole = past(scene, 60.0).by_queue["mail"].whole
    assert whole.enqueued == pytest.approx(5 + 16 / 2)


def test_of_what_nobody_recorded_nothing_is_known(scene: Scene) -> None:
    scene.mail.enqueue("x")
    out = io.StringIO()
    inspect_trend.print_past(past(scene, queue="mail"), blocks=BLOCKS, to=out)
    assert lines_of(out)[1].split() == ["mail", *"--------", *["----"] * 3]
    answer: Any = inspect_trend.as_json(past(scene, queue="mail"))
    assert answer["queues"]["mail"]["enqueued"] is None
    scene.minute(1)
    assert [one.is_known for one in past(scene).by_queue["mail"].slices] == [False] * 4
    scene.minute(1)
    assert [one.is_known for one in past(scene).by_queue["mail"].slices] == [False] * 3 + [True]


def test_of_one_minute_alone_it_is_known_what_happened_since_it_was_recorded_first(scene: Scene) -> None:
    scene.mail.enqueue("before")
    scene.edge.store.record({"mail": Took()})
    scene.mail.enqueue("x")
    scene.clock.advance(20.0)
    scene.edge.store.record({"mail": Took()})
    scene.clock.advance(20.0)
    scene.mail.enqueue("y")
    whole = past(scene, 60.0, "mail").by_queue["mail"].whole
    assert (whole.is_known, whole.enqueued) == (True, 2)


def test_days_are_told_from_hours(scene: Scene) -> None:
    for _ in range(4):
        for _ in range(30):
            scene.clock.advance(3600.0 - 60.0)
            scene.minute(1)
    trend = past(scene, 4 * 86_400.0)
    assert (trend.plan.step_s, trend.plan.count) == (4 * 3600.0, 24)
    assert [round(one.succeeded) for one in trend.by_queue["mail"].slices] == [4] * 24


def test_a_queue_that_there_is_not_and_a_time_that_is_not_kept_are_refused(scene: Scene) -> None:
    with pytest.raises(Missing, match="mail"):
        past(scene, queue="mial")
    for since_s in (59.0, 91 * 86_400.0):
        with pytest.raises(ConfigError, match="from 1m"):
            inspect_trend.check_since(since_s)


@pytest.mark.parametrize(
    ("numbers", "line"),
    [([], ""), ([0, 0.0], "__"), ([1], "@"), ([None, None], "--"), ([0.001, 1000], ".@"), ([1, 2, 4], ":+@")],
)
def test_a_line_has_a_character_a_number(numbers: list[float | None], line: str) -> None:
    assert inspect_trend.spark(numbers, ASCII) == line


@pytest.mark.parametrize(
    ("env", "encoding", "blocks"),
    [
        ({"LC_ALL": "C"}, "utf-8", ASCII),
        ({"LC_ALL": "POSIX", "LANG": "de_DE.UTF-8"}, "utf-8", ASCII),
        ({"LC_CTYPE": "C.UTF-8", "LANG": "C"}, "utf-8", BLOCKS),
        ({"LANG": "tr_TR.UTF-8"}, "utf-8", BLOCKS),
        ({}, "utf-8", BLOCKS),
        ({"LANG": "de_DE"}, "latin-1", ASCII),
    ],
)
def test_blocks_are_drawn_where_they_can_be_shown(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], encoding: str, blocks: str
) -> None:
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert inspect_trend.blocks_for(io.TextIOWrapper(io.BytesIO(), encoding=encoding)) == blocks


APP = """
import ulak

app = ulak.App("sqlite:///jobs.db", queues=["default", "mail"])

@app.task(name="fail", max_attempts=1, queue="mail")
def fail() -> None:
    raise ValueError("no")

@app.task(name="work")
def work() -> None:
    pass
"""


@pytest.fixture
def worked(tmp_path: Path) -> Path:
    """A folder in which `ulak work` has run three jobs, in processes that begin when there is nothing yet."""
    (tmp_path / "shop.py").write_text(APP)
    assert ulak("work", "shop:app", "--drain", cwd=tmp_path).returncode == 0
    script = "import shop; shop.fail.enqueue(); shop.work.enqueue(); shop.work.enqueue()"
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, timeout=60)
    assert ulak("work", "shop:app", "--drain", "--processes", "2", cwd=tmp_path).returncode == 0
    return tmp_path


def test_ulak_work_records_unasked_also_in_several_processes(worked: Path) -> None:
    done = ulak("counts", "--since", "5m", "--json", "--url", "sqlite:///jobs.db", cwd=worked)
    assert (done.returncode, done.stderr) == (0, "")
    queues = json.loads(done.stdout)["queues"]
    told = ("enqueued", "succeeded", "failed", "dead_lettered")
    assert [queues["default"][name] for name in told] == [2, 2, 0, 0]
    assert [queues["mail"][name] for name in told] == [1, 0, 1, 1]
    assert all(queues[name][f"{kind}_p50_s"] > 0 for name in queues for kind in ("wait", "run"))
    url = f"sqlite:///{worked / 'jobs.db'}"
    plain = ulak("counts", "--since", "5m", "-q", "mail", "--url", url, env=STRICT_ASCII, encoding="ascii")
    line = plain.stdout.splitlines()[1]
    assert re.fullmatch(r"mail +1 +0 +1 +1( +\S+){4} +[-_.:=+*#@]{5} +[-_]{5} +[-_.:=+*#@]{5}", line), line
    blocks = {"NO_COLOR": "1", "LC_ALL": "C.UTF-8"}
    status, shown, _ = on_terminal("counts", "--since", "1h", "--url", url, env=blocks)
    assert status == 0
    lines = re.sub("\x1b\\[[0-9;]*m", "", shown).splitlines()
    assert max(map(len, lines)) <= 80
    assert "█" in shown


def test_a_store_without_a_past_says_who_records_one(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with Queue(url, "mail") as q:
        q.enqueue("x")
    done = ulak("counts", "--since", "1h", "--url", url)
    assert done.returncode == 0
    assert done.stderr == "nothing was recorded then: workers of an App do so, each minute\n"
    assert ulak("counts", "--since", "10s", "--url", url).returncode == 2
