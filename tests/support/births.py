"""Where a connection was made that nobody has closed: by the time that is noticed another test runs."""

from __future__ import annotations

import sys
import traceback
from typing import Any

DEPTH = 12


def tell() -> None:
    """From now on, in this process, tell it on stderr.

    One that a thread was making when a test struck it down is nobody's to close, and closed here.
    """
    import psycopg

    connect, delete = psycopg.Connection.connect.__func__, psycopg.Connection.__del__  # type: ignore[attr-defined]

    def begin(cls: Any, *args: Any, **kwargs: Any) -> Any:
        made = connect(cls, *args, **kwargs)
        frames = traceback.walk_stack(sys._getframe(1))
        made._made_at = traceback.StackSummary.extract(frames, limit=DEPTH, lookup_lines=False)
        return made

    def end(self: Any) -> None:
        if not getattr(self, "pgconn", None) or self.closed:
            return
        if hasattr(self, "_made_at"):
            stack = "".join(self._made_at.format())
            print(f"a connection that nobody has closed was made at\n{stack}", file=sys.stderr)
            delete(self)
        else:
            self.pgconn.finish()

    psycopg.Connection.connect = classmethod(begin)  # type: ignore[method-assign,assignment]
    psycopg.connect = psycopg.Connection.connect
    psycopg.Connection.__del__ = end  # type: ignore[method-assign,assignment]
