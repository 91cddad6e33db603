"""Fresh stores for measurements: in memory, in a file, in a database of a server that is started for it."""

from __future__ import annotations

import contextlib
import itertools
import tempfile

from tests.support import postgres

STORES = ("memory", "sqlite", "postgres")


def missing(store):
    """Why a store cannot be had here, or ''."""
    is_there = store != "postgres" or postgres.programs() is not None
    return "" if is_there else "the programs of PostgreSQL are not here"


def chosen(names, known, parser):
    """The stores that an option names; without it those that can be had. Ends for what cannot be."""
    if names is None:
        return [store for store in known if not missing(store)]
    stores = names.split(",")
    for store in stores:
        if store not in known:
            parser.error(f"no store is called {store!r}; there are {', '.join(known)}")
        if why := missing(store):
            parser.error(f"{store}: {why}")
    return stores


class Places:
    """Makes stores in this folder, and on a server of its own once one is asked for; a context manager."""

    def __init__(self, folder):
        self._folder = folder
        self._stack = contextlib.ExitStack()
        self._server = None
        self._numbers = itertools.count(1)

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        self._stack.close()

    @contextlib.contextmanager
    def fresh(self, store):
        """The URL of a store that nobody has used, removed afterwards."""
        if store == "memory":
            yield "memory://"
        elif store == "sqlite":
            with tempfile.TemporaryDirectory(
                prefix="ulak-bench-", dir=self._folder, ignore_cleanup_errors=True
            ) as folder:
                yield f"sqlite:///{folder}/jobs.db"
        else:
            with self._database() as url:
                yield url

    @contextlib.contextmanager
    def _database(self):
        if self._server is None:
            self._server = self._stack.enter_context(postgres.own_server(durable=True))
        name = f"bench_{next(self._numbers)}"
        postgres.execute(self._server.url, f"CREATE DATABASE {name} TEMPLATE template0")
        try:
            # What was done before has left work for the server's writers.
            postgres.execute(self._server.url, "CHECKPOINT")
            yield postgres.database(self._server.url, name)
        finally:
            postgres.execute(self._server.url, f"DROP DATABASE {name} WITH (FORCE)")
