"""Dead letters as JSON lines: out of a store, mended, and in again; on every store."""

from __future__ import annotations

import io
import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Run, read
from tests.cli.everywhere import url  # noqa: F401 - a fixture
from ulak import Backoff, Queue
from ulak.cli import dead_lines
from ulak.cli.inspect_show import MADE_FROM
from ulak.codec import HEADERS_BYTES_MAX

NOT_YET = "nothing was done yet: give --yes to do it\n"


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    return tmp_path / "dead.jsonl"


def die(q: Queue, payload: object = "x", *, error: str = "no \x1b[2J", **options: Any) -> int:
    """The id of a job that failed for good."""
    job_id = q.enqueue(payload, 100, **options)
    lease = q.deliver()
    assert lease is not None
    q.nack(lease, error=error)
    return job_id


def exported(run: Run, *argv: object) -> list[dict[str, Any]]:
    done = run("dead", "export", *argv)
    assert done.status == 0
    assert done.out.isascii()
    assert not set("\x1b\x7f") & set(done.out)
    return [json.loads(line) for line in done.out.splitlines()]


PAYLOADS = [{"to": "é\x7f", "n": [1.5, 2**70, None]}, "text\n\x1b", b"\x00\xff", None, ["x"], 7]


def test_a_line_has_all_that_is_stored_of_a_job(run: Run, mail: Queue) -> None:
    job_id = die(mail, {"to": "é"}, unique_key="u", idempotency_key="i", headers={"a": "b"}, expires=1e6)
    (line,) = exported(run)
    assert (line["id"], line["queue"], line["state"], line["payload"]) == (
        job_id,
        "mail",
        "dead",
        {"to": "é"},
    )
    assert (line["unique_key"], line["idempotency_key"], line["headers"]) == ("u", "i", {"a": "b"})
    assert (line["priority"], line["attempt"], line["delivery"], line["crashes"]) == (100, 1, 1, 0)
    assert line["history"][0]["error"]["text"] == "no \x1b[2J"
    assert line["store"] == mail._edge.store.uid
    assert None not in (line["created_at"], line["ended_at"], line["expires_at"])


def test_what_is_exported_is_imported_as_it_was_and_names_what_it_stands_for(
    run: Run, mail: Queue, lines: Path
) -> None:
    for payload in PAYLOADS:
        die(mail, payload, headers={"tenant": "acme"}, backoff=Backoff(base=1, cap=2))
    lines.write_text(run("dead", "export").out)
    many = len(PAYLOADS)
    assert run("dead", "import", lines) == (1, f"{many} jobs would be enqueued\n", NOT_YET)
    assert mail.counts().ready == 0
    mail.configure(capacity=None)
    new_ids = read(run, "dead", "import", lines, "--yes")["enqueued"]
    new = mail.jobs("ready")
    assert [job.id for job in new] == new_ids
    assert [job.payload for job in new] == PAYLOADS
    for job, old in zip(new, mail.jobs("dead"), strict=True):
        assert (job.codec, job.priority, job.task) == (old.codec, old.priority, old.task)
        assert (job.max_attempts, job.backoff) == (old.max_attempts, old.backoff)
        assert job.headers == {"tenant": "acme", MADE_FROM: str(old.id)}
    shown = run("show", new_ids[0]).out
    assert f"  in place of dead job {mail.jobs('dead')[0].id}\n" in shown


def test_a_second_import_adds_nothing(run: Run, mail: Queue, lines: Path) -> None:
    die(mail, "a")
    die(mail, "b")
    run("dead", "export", "-o", lines)
    assert run("dead", "import", lines, "--yes") == (0, "2 jobs enqueued: 3, 4\n", "")
    again = "0 jobs enqueued\n  2 jobs left out, enqueued before: 3, 4\n"
    assert run("dead", "import", lines, "--yes") == run("dead", "import", lines) == (0, again, "")
    assert mail.counts().ready == 2
    # Nor do lines that come twice, whatever became of the first.
    mail.cancel([3, 4])
    lines.write_text(lines.read_text() * 2)
    assert read(run, "dead", "import", lines, "--yes")["before"] == [3, 4, 3, 4]


def test_a_job_that_dies_again_can_be_imported_again(run: Run, mail: Queue, lines: Path) -> None:
    job_id = die(mail, "a")
    lines.write_text(run("dead", "export").out)
    assert len(read(run, "dead", "import", lines, "--yes")["enqueued"]) == 1
    mail.redrive(job_id)
    lease = mail.deliver()
    assert lease is not None
    mail.nack(lease)
    lines.write_text(run("dead", "export").out)
    assert len(read(run, "dead", "import", lines, "--yes")["enqueued"]) == 1


def test_a_second_import_adds_nothing_even_where_the_job_is_no_longer_stored(
    run: Run, mail: Queue, lines: Path
) -> None:
    die(mail, "a")
    lines.write_text(run("dead", "export").out)
    (new,) = read(run, "dead", "import", lines, "--yes")["enqueued"]
    assert mail.delete(new)
    assert read(run, "dead", "import", lines, "--yes")["before"] == [new]
    assert mail.counts().open == 0


def test_headers_that_fill_their_limit_leave_room_for_the_one_that_links(
    run: Run, mail: Queue, lines: Path
) -> None:
    die(mail, "a", headers={"x": "y" * (HEADERS_BYTES_MAX - 1)})
    for _ in range(3):
        lines.write_text(run("dead", "export").out)
        assert run("dead", "import", lines, "--yes").status == 0
        (new,) = mail.jobs("ready")
        lease = mail.deliver()
        assert lease is not None
        mail.nack(lease)
        mail.delete([job.id for job in mail.jobs("dead") if job.id != new.id])
    assert new.headers[MADE_FROM] == str(new.id - 1)


def test_a_mended_payload_is_what_runs(run: Run, mail: Queue, lines: Path) -> None:
    die(mail, {"to": "grace"})
    (line,) = exported(run)
    line["payload"]["to"] = "grace@example.org"
    lines.write_text(json.dumps(line))
    assert run("dead", "import", lines, "--yes").status == 0
    assert mail.jobs("ready")[0].payload == {"to": "grace@example.org"}


def test_an_import_says_beforehand_how_much_room_there_is_and_stops_at_the_capacity(
    run: Run, mail: Queue, lines: Path
) -> None:
    for payload in "abc":
        die(mail, payload)
    lines.write_text(run("dead", "export").out)
    mail.enqueue_many(["x"] * 9)
    room = "  queue mail has room for 1 only; the others would be left out\n"
    assert run("dead", "import", lines) == (1, f"3 jobs would be enqueued\n{room}", NOT_YET)
    left = "  2 jobs left out, no room in the queue: again when there is\n"
    assert run("dead", "import", lines, "--yes") == (1, f"1 job enqueued: 13\n{left}", "")
    assert mail.jobs("ready")[-1].payload == "a"


def test_an_import_of_more_than_a_queue_can_ever_hold_fills_it(run: Run, mail: Queue, lines: Path) -> None:
    for n in range(3):
        die(mail, n)
    lines.write_text(run("dead", "export").out)
    mail.configure(capacity=2)
    answer = read(run, "dead", "import", lines, "--yes", status=1)
    assert (len(answer["enqueued"]), answer["full"]) == (2, 1)


def test_a_unique_key_that_is_taken_keeps_a_job_out(run: Run, mail: Queue, lines: Path) -> None:
    die(mail, unique_key="ada")
    lines.write_text(run("dead", "export").out)
    other = mail.enqueue("y", unique_key="ada")
    left = f"0 jobs enqueued\n  1 job left out, another open job has the unique key: {other}\n"
    assert run("dead", "import", lines, "--yes") == run("dead", "import", lines) == (1, left, "")


def test_lines_that_share_a_unique_key_are_foretold_as_they_come_in(
    run: Run, mail: Queue, lines: Path
) -> None:
    for payload in "abc":
        die(mail, payload, unique_key=payload)
    found = exported(run)
    for line in found[:2]:
        line["unique_key"] = "ada"
    lines.write_text("".join(f"{json.dumps(line)}\n" for line in [*found, found[2]]))
    left = "  2 jobs left out, an earlier line has the unique key\n"
    assert run("dead", "import", lines) == (1, f"2 jobs would be enqueued\n{left}", NOT_YET)
    answer = read(run, "dead", "import", lines, "--yes", status=1)
    assert answer["enqueued"] == [4, 5]
    assert (answer["unique"], answer["before"]) == ([4], [5])


def test_a_payload_that_was_mended_after_an_import_is_not_told_as_done(
    run: Run, mail: Queue, lines: Path
) -> None:
    dead = die(mail, {"to": "grace"})
    lines.write_text(run("dead", "export").out)
    assert run("dead", "import", lines, "--yes").status == 0
    mended = '{"to": "grace@example.org"}'
    left = "0 jobs enqueued\n  1 job left out, enqueued before, and with another payload: 2\n"
    assert run("dead", "edit", dead, "--payload", mended, "--yes") == (1, left, "")
    lines.write_text(lines.read_text().replace("grace", "ada"))
    assert run("dead", "import", lines, "--yes") == (1, left, "")
    assert [job.payload for job in mail.jobs("ready")] == [{"to": "grace"}]


def test_lines_come_from_the_standard_input_too(
    run: Run, mail: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    die(mail, "a")
    text = run("dead", "export").out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert run("dead", "import", "-", "--yes").status == 0
    assert mail.counts().ready == 1


NEEDED = '"store":"s","id":1,"delivery":1,"queue":"mail"'


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"queue": "mail"}',
        f'{{{NEEDED},"codec":"json","max_attempts":0,"payload":1}}',
        f'{{{NEEDED},"codec":"json","max_attempts":1}}',
        f'{{{NEEDED},"codec":"json","max_attempts":1,"payload_base64":"?"}}',
        f'{{{NEEDED},"codec":"json","max_attempts":1,"payload_base64":"ew=="}}',
        f'{{{NEEDED},"codec":"json","max_attempts":1,"payload":{"[" * 40}{"]" * 40}}}',
        f'{{{NEEDED},"codec":"json","max_attempts":1,"payload":1,"task":"a b"}}',
        f'{{{NEEDED},"codec":"str","max_attempts":1,"payload":"{"x" * 300_000}"}}',
    ],
    ids=lambda text: text[:10] if len(text) < 20 else text[58:90],
)
def test_a_line_that_cannot_be_read_is_named_and_nothing_is_enqueued(
    run: Run, mail: Queue, lines: Path, text: str
) -> None:
    die(mail, "a")
    lines.write_text(run("dead", "export").out + text + "\n")
    done = run("dead", "import", lines, "--yes")
    assert (done.status, done.out) == (2, "")
    assert f"line 2 of {lines} is not as ulak dead export writes it: " in done.err
    assert len(done.err) < 400
    assert mail.counts().ready == 0


def test_a_line_without_an_end_is_not_read_to_it(
    run: Run, mail: Queue, lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    die(mail, "a")
    lines.write_text(run("dead", "export").out)
    monkeypatch.setattr(dead_lines, "LINE_BYTES_MAX", 100)
    done = run("dead", "import", lines, "--yes")
    assert (done.status, done.out) == (2, "")
    assert "line 1 of" in done.err
    assert "it is longer than 100 bytes" in done.err


def test_what_is_not_there_is_not_found(run: Run, mail: Queue, lines: Path) -> None:
    job_id = die(mail, "a")
    assert run("dead", "import", lines) == (3, "", f"error: there is no file {lines}\n")
    folder = run("dead", "import", lines.parent)
    assert (folder.status, f"{lines.parent} is a directory" in folder.err) == (2, True)
    assert run("dead", "export", "e1234567").status == 3
    part = run("dead", "export", job_id, 99)
    assert (part.status, part.out.count("\n")) == (1, 1)
    assert part.err.endswith("there is no dead job of '99'; ulak dead ls tells what there is\n")
    lines.write_text(json.dumps(exported(run)[0] | {"queue": "mial"}))
    assert run("dead", "import", lines, "--yes").status == 3
    assert run("dead", "export", "-q", "mial").status == 3
    assert run("dead", "export", "--task", "no.such") == (0, "", "there is no such job\n")


def test_a_group_and_single_jobs_are_exported(run: Run, mail: Queue) -> None:
    first, second = die(mail, error="one"), die(mail, error="two")
    die(mail, error="three")
    name = next(
        group["fingerprint"] for group in read(run, "dead", "ls")["groups"] if group["last_id"] == second
    )
    assert [line["id"] for line in exported(run, name, first)] == [first, second]
    assert [line["id"] for line in exported(run, name, "--error", "TWO")] == [second]
    assert run("dead", "export", name, "--error", "one").status == 3


def test_a_file_is_only_for_its_owner_and_never_written_over(run: Run, mail: Queue, lines: Path) -> None:
    die(mail, "a")
    done = run("dead", "export", "--output", lines)
    assert (done.status, done.out) == (0, "")
    assert done.err == f"1 job exported to {lines}, and still stored: ulak dead drop removes it\n"
    assert stat.S_IMODE(lines.stat().st_mode) == 0o600
    before = lines.read_bytes()
    refused = run("dead", "export", "--output", lines)
    assert (refused.status, lines.read_bytes()) == (2, before)
    for nowhere in (lines / "x", lines.parent / "none" / "x"):
        refused = run("dead", "export", "--output", nowhere)
        assert (refused.status, "[Errno" in refused.err) == (2, False)
        assert refused.err.startswith(f"error U302: {nowhere} cannot be made: ")
    lines.unlink()
    assert read(run, "dead", "export", "-o", lines) == {"exported": 1, "file": str(lines)}


# edit


def test_a_dead_job_is_enqueued_with_another_payload_once(run: Run, mail: Queue) -> None:
    dead = die(mail, {"to": "grace"}, headers={"tenant": "acme"}, backoff=Backoff(base=1, cap=2))
    words = ("dead", "edit", dead, "--payload", '{"to": "grace@example.org"}')
    assert run(*words) == (1, "1 job would be enqueued\n", NOT_YET)
    stays = f"job {dead} stays as it is: ulak dead drop {dead} removes it\n"
    assert run(*words, "--yes") == (0, "1 job enqueued: 2\n", stays)
    (new,) = mail.jobs("ready")
    assert (new.payload, new.priority) == ({"to": "grace@example.org"}, 100)
    assert (new.backoff, new.max_attempts) == (Backoff(base=1, cap=2), 1)
    assert new.headers == {"tenant": "acme", MADE_FROM: str(dead)}
    assert mail.counts().dead == 1
    again = "0 jobs enqueued\n  1 job left out, enqueued before: 2\n"
    assert run(*words, "--yes") == (0, again, "")


def test_a_text_stays_a_text(run: Run, mail: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = die(mail, "grace")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO('"gräce"'.encode())))
    assert run("dead", "edit", dead, "--payload", "-", "--yes").status == 0
    (new,) = mail.jobs("ready")
    assert (new.payload, new.codec) == ("gräce", "str")


def test_only_dead_jobs_are_edited_and_only_with_json(run: Run, mail: Queue) -> None:
    dead, waiting = die(mail), mail.enqueue("w")
    for job_id, why in ((waiting, "is not dead"), (99, "is not stored here")):
        done = run("dead", "edit", job_id, "--payload", "1", "--yes")
        assert done == (3, "", f"error: job {job_id} {why}; ulak dead ls tells what there is\n")
    for payload in ("grace", "NaN", "[" * 40 + "]" * 40, f'"{"x" * 300_000}"'):
        done = run("dead", "edit", dead, "--payload", payload, "--yes")
        assert (done.status, done.out) == (2, "")
        assert "--payload" in done.err
    assert mail.counts().open == 1
