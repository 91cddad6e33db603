"""`ulak migrate`: what a store's schema lacks, and how it gets it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from urllib.parse import urlencode

import msgspec

from ulak.cli.inspect_open import Target, target_of
from ulak.cli.inspect_table import print_json
from ulak.cli.output import say, visible
from ulak.clock import SYSTEM
from ulak.errors import ConfigError
from ulak.local import check_library, file_of, is_on_server, local_store, masked, server_of

_ROLE_BYTES_MAX = 63


class Step(msgspec.Struct, frozen=True):
    """A migration, or a half of one."""

    number: int
    title: str


class Plan(msgspec.Struct, frozen=True):
    """What there is, and what is to be done. version: 0 if there is no store."""

    what: str
    version: int
    newest: int
    before: Sequence[Step]
    after: Sequence[Step]


def title_of(text: str) -> str:
    """What a migration does: the first sentence of its first line."""
    first = text.partition("\n")[0].removeprefix("--").strip()
    return first.partition(". ")[0].partition(";")[0].rstrip(".")


def run(args: argparse.Namespace) -> int:
    """Migrate, or say what that would do, or print it; 0."""
    target = target_of(args)
    if target.is_in_memory:
        raise ConfigError(f"a store in memory ({target.source}) is made anew each time: nothing to migrate")
    if not is_on_server(target.url):
        if args.sql or args.grants is not None:
            raise ConfigError(
                f"{'--sql' if args.sql else '--grants'} is for a PostgreSQL server; a file ({target.source}) "
                "is brought up to date by ulak migrate"
            )
        return _on_file(target, args)
    check_library()
    if args.grants is not None:
        return _print_grants(target, args)
    return _on_server(target, args)


def _on_server(target: Target, args: argparse.Namespace) -> int:
    from ulak.storage.postgres import schema
    from ulak.storage.postgres.halves import Half, newest

    place = server_of(target.url)
    half = Half.AFTER if args.after else Half.BEFORE

    def planned() -> Plan:
        before, after = (
            [Step(part.number, title_of(part.text)) for part in found.pending(of)]
            for of in (Half.BEFORE, Half.AFTER)
        )
        return Plan(masked(target.url), found.prepared, newest(), before, after)

    found: schema.Found = schema.run(place, schema.found_in(place))
    plan = planned()
    if args.sql:
        texts = schema.statements(place, found, half)
        return _print_sql(texts, place.schema, f"{plan.what}, {half.value} the deploy", args)
    done: list[Step] = []
    if not args.plan:
        done = [
            Step(part.number, title_of(part.text)) for part in schema.run(place, schema.change(place, half))
        ]
        found = schema.run(place, schema.found_in(place))
        plan = planned()
    return _tell(plan, done, args)


def _on_file(target: Target, args: argparse.Namespace) -> int:
    from ulak.storage.sqlite.link import connect_to_look, with_patience
    from ulak.storage.sqlite.place import check_place
    from ulak.storage.sqlite.schema import VERSION, statements, version_of

    path, options = file_of(target.url)

    def planned() -> Plan:
        version = 0
        if Path(path).exists():
            check_place(Path(path))
            with closing(connect_to_look(path)) as db:
                version = with_patience(lambda: version_of(db, path), path)
                (mode,) = db.execute("PRAGMA journal_mode").fetchone()
            if version:
                # As the file is: opened by a URL that asks for another journal, it would be changed to that.
                options["journal"] = "wal" if mode == "wal" else "truncate"
        numbers = range(version + 1, VERSION + 1)
        return Plan(
            masked(target.url), version, VERSION, [Step(n, title_of(statements(n)[0])) for n in numbers], []
        )

    plan, done = planned(), list[Step]()
    if not args.plan and not args.after and plan.before:
        done = list(plan.before)
        url = f"sqlite:///{path}{'?' if options else ''}{urlencode(options)}"
        local_store(url, SYSTEM).close_handle()
        plan = planned()
    return _tell(plan, done, args)


def _tell(plan: Plan, done: Sequence[Step], args: argparse.Namespace) -> int:
    if args.json:
        names = ("version", "newest", "before", "after")
        answer = {"store": plan.what, **{name: msgspec.to_builtins(getattr(plan, name)) for name in names}}
        print_json({**answer, "done": msgspec.to_builtins(list(done))}, to=sys.stdout)
        return 0
    there = f"version {plan.version}" if plan.version else "there is none yet"
    if not plan.version or plan.before:
        there += f"; this ulak works with {plan.newest}"
    say(visible(f"{plan.what}: {there}"), to=sys.stdout)
    _say_steps("done", done)
    _say_steps("before the deploy: ulak migrate", plan.before)
    _say_steps("after it, once no program of an older version runs: ulak migrate --after", plan.after)
    if not (done or plan.before or plan.after):
        say("  nothing is to be done", to=sys.stdout)
    return 0


def _say_steps(head: str, steps: Sequence[Step]) -> None:
    if steps:
        say(f"  {head}", to=sys.stdout)
    for step in steps:
        say(f"    {step.number:04}  {visible(step.title)}", to=sys.stdout)


def _print_grants(target: Target, args: argparse.Namespace) -> int:
    from ulak.storage.postgres.grants import statements

    role, place = args.grants, server_of(target.url)
    if not 0 < len(role.encode(errors="surrogateescape")) <= _ROLE_BYTES_MAX or role != visible(role):
        raise ConfigError(
            f"--grants takes the name of a role of the server, of at most {_ROLE_BYTES_MAX} bytes"
        )
    head = f"{place}, for a user who enqueues, works and looks"
    return _print_sql(statements(place.schema, role), place.schema, head, args)


def _print_sql(texts: Sequence[str], schema: str, head: str, args: argparse.Namespace) -> int:
    """Print statements as one transaction."""
    from ulak.storage.postgres.link import search_path

    lines = [f"-- ulak: {visible(head)}"]
    if not texts:
        lines.append("-- nothing is to be done")
    else:
        path = f"SET LOCAL search_path TO {search_path(schema)}"
        lines += [f"{text.strip().removesuffix(';')};" for text in ("BEGIN", path, *texts, "COMMIT")]
    if args.json:
        print_json({"sql": "\n".join(lines)}, to=sys.stdout)
    else:
        # As it is: it is ours, but for names, which are quoted.
        for line in "\n".join(lines).splitlines():
            say(line, to=sys.stdout)
    return 0
