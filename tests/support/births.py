"""Where a connection was made that nobody has closed: by the time that is noticed another test runs."""

from __future__ import annotations

import sys
import traceback
from typing import Any

DEPTH = 12


def tell() -> None:
    """From now on, in this process, tell it on stderr."""
    import psycopg

    init, delete = psycopg.BaseConnection.__init__, psycopg.BaseConnection.__del__

    def begin(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        frames = traceback.walk_stack(sys._getframe(1))
        self._made_at = traceback.StackSummary.extract(frames, limit=DEPTH, lookup_lines=False)

    def end(self: Any) -> None:
        if not self.closed:
            stack = "".join(getattr(self, "_made_at", traceback.StackSummary()).format())
            print(f"a connection that nobody has closed was made at\n{stack}", file=sys.stderr)
        delete(self)

    psycopg.BaseConnection.__init__, psycopg.BaseConnection.__del__ = begin, end  # type: ignore[method-assign]
