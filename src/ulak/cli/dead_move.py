"""`ulak dead export`, `import` and `edit`: dead letters out of a store, and as new jobs into one again."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TextIO

import msgspec

from ulak.cli.dead_groups import fingerprint_of
from ulak.cli.dead_lines import Letter, letter_of, letters_of, line_of
from ulak.cli.inspect_change import few, too_little_room
from ulak.cli.inspect_choice import choice_of, chosen
from ulak.cli.inspect_open import NOT_FOUND, Missing, finding, opened, settings_of
from ulak.cli.inspect_table import json_text, many, print_json
from ulak.cli.output import say, visible, written
from ulak.cli.payloads import read_json
from ulak.core.job import Duplicate, Full, Job, State
from ulak.core.store import Store
from ulak.errors import ArgumentError, ConfigError

DONE, NOT_DONE = 0, 1

_BATCH = 100
"""So many are read, and enqueued in one step: each may have a payload of 256 KiB."""


# export


def run_export(args: argparse.Namespace) -> int:
    """Write them, a line each; 0, or 3 if there are none of a fingerprint or id that was named."""
    return finding(_export, args)


def _export(args: argparse.Namespace) -> int:
    with opened(args) as edge:
        if args.queue is not None:
            settings_of(edge.store, args.queue)
        jobs = chosen(edge.store, choice_of(args, [State.DEAD]), edge.clock.calendar())
        seen: set[str] = set()
        lines = (line_of(job, edge.store.uid) for job in named(jobs, args.targets, seen))
        if args.output is None:
            number = write_lines(lines, to=sys.stdout)
        else:
            with _created(args.output) as file:
                number = write_lines(lines, to=file)
    return _tell_exported(args, number, [target for target in args.targets if target not in seen])


def named(jobs: Iterable[Job], targets: Sequence[str], seen: set[str]) -> Iterator[Job]:
    """Those of the jobs that a fingerprint or an id names; all, if there is none. seen: which did."""
    wanted = set(targets)
    for job in jobs:
        found = wanted & {str(job.id), fingerprint_of(job)} if wanted else None
        if found or found is None:
            seen.update(found or ())
            yield job


def write_lines(lines: Iterable[dict[str, object]], *, to: TextIO | None) -> int:
    """Write them, one at a time; how many there were."""
    number = 0
    for line in lines:
        number += 1
        if to is not None:
            with written(to):
                to.write(f"{json_text(line)}\n")
    return number


@contextmanager
def _created(name: str) -> Iterator[TextIO]:
    """A new file that only its owner can read; in the end it is whole and on the disk, or not there."""
    try:
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError(f"there is a file {name} already, and it was left alone: name another") from None
    except OSError as error:
        raise ConfigError(f"{name} cannot be made: {error.strerror}; nothing was exported") from error
    try:
        with open(descriptor, "w", encoding="ascii") as file:  # noqa: PTH123 - it is open
            yield file
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        Path(name).unlink()
        raise


def _tell_exported(args: argparse.Namespace, number: int, unseen: Sequence[str]) -> int:
    where = "" if args.output is None else f" to {args.output}"
    if args.json and args.output is not None:
        print_json({"exported": number, "file": args.output}, to=sys.stdout)
    if number:
        still = f"still stored: ulak dead drop removes {'it' if number == 1 else 'them'}"
        say(visible(f"{many(number, 'job')} exported{where}, and {still}"), to=sys.stderr)
    elif not unseen:
        say("there is no such job", to=sys.stderr)
    for target in unseen:
        say(f"there is no dead job of {target[:64]!r}; ulak dead ls tells what there is", to=sys.stderr)
    if not unseen:
        return DONE
    return NOT_DONE if number else NOT_FOUND


# import


class Put(msgspec.Struct):
    """What became of letters, or would.

    new: the ids of the new jobs. would: how many would be enqueued. before: the ids of those that stand for a
    letter since an earlier import, or line. other: likewise, with another payload than it has. taken: of open
    jobs that have its unique key. shared: how many have that of an earlier line, or stand for the same job.
    full: how many had no room. room: of queues that have less of it than would be needed.
    """

    new: list[int] = msgspec.field(default_factory=list)
    would: int = 0
    before: list[int] = msgspec.field(default_factory=list)
    other: list[int] = msgspec.field(default_factory=list)
    taken: list[int] = msgspec.field(default_factory=list)
    shared: int = 0
    full: int = 0
    room: dict[str, int] = msgspec.field(default_factory=dict)


def run_import(args: argparse.Namespace) -> int:
    """Enqueue them if --yes is given; 0 all are, or were before; 1 not, or not all."""
    return finding(_import, args)


def _import(args: argparse.Namespace) -> int:
    with _read(args.file) as file:
        queues = Counter(letter.queue for letter in letters_of(file, args.file))
        file.seek(0)
        with opened(args) as edge:
            for queue in queues:
                settings_of(edge.store, queue)
            put = put_all(edge.store, letters_of(file, args.file), really=args.yes)
    return tell_put(put, as_json=args.json, really=args.yes)


@contextmanager
def _read(name: str) -> Iterator[IO[bytes]]:
    """A file that can be read twice: it is looked at as a whole before anything is enqueued."""
    if name != "-":
        if Path(name).is_dir():
            raise ConfigError(f"{name} is a directory; name a file that ulak dead export has written")
        if not Path(name).is_file():
            raise Missing(f"there is no file {name}")
        with Path(name).open("rb") as file:
            yield file
        return
    with tempfile.TemporaryFile() as copy:
        while part := sys.stdin.buffer.read(2**20):
            copy.write(part)
        copy.seek(0)
        yield copy


def put_all(store: Store, letters: Iterable[Letter], *, really: bool) -> Put:
    """Enqueue letters, a hundred at a time, in their order; or find out what would become of them."""
    put = Put()
    wanted: Counter[str] = Counter()
    keys: set[tuple[str, str | None]] = set()
    batch: list[Letter] = []
    for letter in letters:
        if batch and (letter.queue != batch[0].queue or len(batch) == _BATCH):
            _put(store, batch, put, wanted, keys, really=really)
            batch = []
        batch.append(letter)
    if batch:
        _put(store, batch, put, wanted, keys, really=really)
    put.room = too_little_room(store, wanted)
    return put


def _put(
    store: Store,
    batch: Sequence[Letter],
    put: Put,
    wanted: Counter[str],
    keys: set[tuple[str, str | None]],
    *,
    really: bool,
) -> None:
    """Put those of one queue. keys: those of the letters that would be enqueued so far."""
    answers = _answers(store, batch, really=really)
    known = [int(answer) for answer in answers if isinstance(answer, Duplicate)]
    there = dict(zip(known, store.get(known), strict=True))
    for letter, answer in zip(batch, answers, strict=True):
        draft = letter.draft
        if isinstance(answer, Full) and not really and not keys.isdisjoint(_keys_of(letter)):
            put.shared += 1
        elif isinstance(answer, Full):
            keys.update(_keys_of(letter))
            put.would += not really
            put.full += really
            wanted[letter.queue] += not really
        elif not isinstance(answer, Duplicate):
            put.new.append(answer)
        else:
            # The job of an idempotency key may be forgotten; that of a unique key is open.
            job = there[int(answer)]
            if job is not None and job.idempotency_key != draft.idempotency_key:
                put.taken.append(int(answer))
            else:
                is_same = job is None or (job.payload, job.codec) == (draft.payload, draft.codec)
                (put.before if is_same else put.other).append(int(answer))


def _keys_of(letter: Letter) -> set[tuple[str, str | None]]:
    """What only one open job of its queue may have, and what only one job may."""
    draft = letter.draft
    once = {("", draft.idempotency_key)}
    return once if draft.unique_key is None else {*once, (letter.queue, draft.unique_key)}


def _answers(store: Store, batch: Sequence[Letter], *, really: bool) -> list[int | Full]:
    """An answer per letter of one queue; FULL, too, for what is new and only looked for."""
    queue, drafts = batch[0].queue, [letter.draft for letter in batch]
    try:
        answer = store.add(queue, drafts, known_only=not really)
    except ArgumentError:
        # More of them than the queue can ever hold.
        answer = Full.FULL
    if not isinstance(answer, Full):
        return list(answer)
    if len(drafts) == 1:
        return [answer]
    return [one for letter in batch for one in _answers(store, [letter], really=really)]


def tell_put(put: Put, *, as_json: bool, really: bool) -> int:
    """Say what became of them, or would; the exit status."""
    if as_json:
        answer = {"enqueued": put.new, "would_enqueue": put.would, "room": put.room}
        answer |= {"before": put.before, "unique": put.taken, "full": put.full}
        print_json(answer | {"before_with_other_payload": put.other, "shared": put.shared}, to=sys.stdout)
    else:
        if put.would:
            say(f"{many(put.would, 'job')} would be enqueued", to=sys.stdout)
        else:
            say(f"{many(len(put.new), 'job')} enqueued{few(put.new)}", to=sys.stdout)
        for queue, room in put.room.items():
            say(f"  queue {queue} has room for {room} only; the others would be left out", to=sys.stdout)
        for ids, why in (
            (put.before, "enqueued before"),
            (put.other, "enqueued before, and with another payload"),
            (put.taken, "another open job has the unique key"),
        ):
            if ids:
                say(f"  {many(len(ids), 'job')} left out, {why}{few(ids)}", to=sys.stdout)
        if put.shared:
            say(f"  {many(put.shared, 'job')} left out, an earlier line has the unique key", to=sys.stdout)
        if put.full:
            say(
                f"  {many(put.full, 'job')} left out, no room in the queue: again when there is",
                to=sys.stdout,
            )
    if put.would and not really:
        say("nothing was done yet: give --yes to do it", to=sys.stderr)
    return NOT_DONE if put.would or put.other or put.taken or put.full else DONE


# edit


def run_edit(args: argparse.Namespace) -> int:
    """Enqueue a dead job with another payload if --yes is given; the statuses are those of an import."""
    return finding(_edit, args)


def _edit(args: argparse.Namespace) -> int:
    payload = read_json(args.payload)
    with opened(args) as edge:
        letter = edited(edge.store, args.id, payload)
        put = put_all(edge.store, [letter], really=args.yes)
    status = tell_put(put, as_json=args.json, really=args.yes)
    if put.new and not args.json:
        say(f"job {args.id} stays as it is: ulak dead drop {args.id} removes it", to=sys.stderr)
    return status


def edited(store: Store, job_id: int, payload: bytes) -> Letter:
    """A dead job with this JSON as its payload. Raises Missing unless it is one."""
    (job,) = store.get([job_id])
    if job is None or job.state is not State.DEAD:
        so = "is not dead" if job is not None else "is not stored here"
        raise Missing(f"job {job_id} {so}; ulak dead ls tells what there is")
    return letter_of(job, store.uid, payload)
