"""What a user needs who enqueues, works and looks, and no more: it may make, alter and drop nothing."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from ulak.storage.postgres.asks import Execute, Step

_ALL = ("SELECT", "INSERT", "UPDATE", "DELETE")
TABLES = {
    "store": ("SELECT",),
    "queues": ("SELECT", "INSERT", "UPDATE"),
    **dict.fromkeys(("jobs", "ended", "tallies", "keys", "holders", "workers", "schedules", "history"), _ALL),
}
SEQUENCES = ("job_ids", "holder_ids")
FUNCTIONS = {"has_room": "(bigint, bigint)"}

# Names are looked up in the catalogue, whether or not this user may use the schema.
_MISSING = (
    "SELECT 'USAGE on schema ' || nspname FROM pg_namespace "
    "WHERE nspname = %(schema)s::text AND NOT has_schema_privilege(oid, 'USAGE') "
    "UNION ALL SELECT wanted.r || ' on ' || wanted.name FROM unnest(%(names)s::text[], %(rights)s::text[]) "
    "WITH ORDINALITY AS wanted (name, r, place) JOIN pg_class c ON c.relname = wanted.name "
    "JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = %(schema)s::text "
    "WHERE NOT CASE c.relkind WHEN 'S' THEN has_sequence_privilege(c.oid, wanted.r) "
    "ELSE has_table_privilege(c.oid, wanted.r) END "
    "UNION ALL SELECT 'EXECUTE on ' || p.proname FROM pg_proc p "
    "JOIN pg_namespace n ON n.oid = p.pronamespace AND n.nspname = %(schema)s::text "
    "WHERE NOT has_function_privilege(p.oid, 'EXECUTE')"
)


def statements(schema: str, role: str) -> list[str]:
    """What grants it all to a role."""
    wanted = [("USAGE", "SCHEMA {}", sql.Identifier(schema))]
    wanted += [
        (", ".join(rights), "TABLE {}", sql.Identifier(schema, name)) for name, rights in TABLES.items()
    ]
    wanted += [("USAGE", "SEQUENCE {}", sql.Identifier(schema, name)) for name in SEQUENCES]
    wanted += [
        ("EXECUTE", f"FUNCTION {{}}{of}", sql.Identifier(schema, name)) for name, of in FUNCTIONS.items()
    ]
    return [
        sql.SQL(f"GRANT {rights} ON {kind} TO {{}}").format(name, sql.Identifier(role)).as_string()
        for rights, kind, name in wanted
    ]


def missing(schema: str) -> Step[Sequence[str]]:
    """What of it this session's user lacks, in words."""
    wanted = [(name, right) for name, rights in TABLES.items() for right in rights]
    wanted += [(name, "USAGE") for name in SEQUENCES]
    params = {
        "schema": schema,
        "names": [name for name, _ in wanted],
        "rights": [right for _, right in wanted],
    }
    rows = yield Execute(_MISSING, params, alone=True)
    return [text for (text,) in rows]
