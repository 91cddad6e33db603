"""Where an error was raised: what is stored of that, and how it is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ulak import App, codec
from ulak.capture import capture, frame_of, place_of, said_of
from ulak.core.job import Failure

HERE = Path(__file__)


def line_of(text: str) -> int:
    """The number of the one line of this file that ends so."""
    (number,) = (n for n, line in enumerate(HERE.read_text().splitlines(), 1) if line.endswith(text))
    return number


def fail(text: str) -> None:
    raise LookupError(text)  # here


def raised_by(call) -> Failure:
    with pytest.raises(Exception) as caught:
        call()
    return capture(caught.value)


def test_the_frames_of_ulak_that_called_what_failed_are_not_stored() -> None:
    app = App()

    @app.around
    def open_log(_):
        fail("no log")

    task = app.task(fail)
    with app.workers(1):
        job = task.using(max_attempts=1).enqueue("x")
        job.wait(10)
        frames = job.info().error.traceback.splitlines()
    assert [frame.rpartition(", in ")[2] for frame in frames] == [f"{open_log.__qualname__}", "fail"]


def test_an_error_that_is_raised_in_ulak_keeps_the_frame_that_raised_it() -> None:
    def main() -> None:
        codec.encode(object())

    failure = raised_by(main)
    assert "/ulak/codec.py" in failure.traceback.splitlines()[-1]
    assert place_of(failure).startswith(f"{HERE.relative_to(Path.cwd())}:")
    only_ours = capture(_without_outer_frames(main))
    assert "/ulak/codec.py" in frame_of(only_ours)


def _without_outer_frames(call) -> Exception:
    with pytest.raises(Exception) as caught:
        call()
    trace = caught.value.__traceback__
    while "codec.py" not in trace.tb_frame.f_code.co_filename:
        trace = trace.tb_next
    return caught.value.with_traceback(trace)


def test_a_place_is_a_file_and_a_line(monkeypatch, tmp_path) -> None:
    failure = raised_by(lambda: fail("x"))
    inner = line_of("# here")
    monkeypatch.chdir(HERE.parent)
    assert place_of(failure) == f"{HERE.name}:{inner}"
    assert frame_of(failure) == f'File "{HERE}", line {inner}, in fail'
    monkeypatch.chdir(tmp_path)
    assert place_of(failure) == f"{HERE}:{inner}"


def test_a_place_is_known_where_there_is_no_directory_any_more(monkeypatch, tmp_path) -> None:
    failure = raised_by(lambda: json.loads("{"))
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(OSError):
        Path.cwd()
    assert place_of(failure).partition(":")[0].endswith("json/decoder.py")


@pytest.mark.parametrize("traceback", ["", "\n", "what a foreign program wrote", 'File "x"\nline 8'])
def test_where_no_place_is_stored_none_is_shown(traceback) -> None:
    failure = Failure("ValueError", "no", traceback)
    assert place_of(failure) == ""
    assert said_of(failure) == "ValueError: no"


def test_an_error_is_said_in_one_bounded_line() -> None:
    placed = 'File "/srv/app/hello.py", line 8, in welcome\n'
    assert said_of(Failure("ValueError", " no\nsuch user", placed)) == "ValueError: no (/srv/app/hello.py:8)"
    assert said_of(Failure("", "nacked", "")) == "nacked"
    assert said_of(Failure("KeyError", "", placed)) == "KeyError (/srv/app/hello.py:8)"
    assert len(said_of(Failure("E", "x" * 10_000, placed))) < 400
