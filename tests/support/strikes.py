"""An exception out of the blue at any line of a store, as a signal's handler raises it."""

from __future__ import annotations

import contextlib
import linecache
import sys
from collections.abc import Callable, Collection, Iterator
from types import FrameType
from typing import Any

CLAIMS: dict[str, Callable[[Any], Any]] = {
    "claim": lambda store: store.claim(["mail"], 1, worker="w", lease_s=60.0),
    "turn": lambda store: store.turn([], ["mail"], 1, worker="w", lease_s=60.0),
}


@contextlib.contextmanager
def struck_at(
    error: type[BaseException], line_number: int, *, after: str, spared: Collection[str]
) -> Iterator[None]:
    """While inside, raise at the n-th line of the store's after a function was entered; it does not come out.

    spared: lines at which no strike falls.
    """
    seen, is_after = 0, False

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal seen, is_after
        if "/ulak/storage/" not in frame.f_code.co_filename:
            return None
        is_after |= frame.f_code.co_name == after
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if event == "line" and is_after and line not in spared:
            seen += 1
            if seen == line_number:
                raise error
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        with contextlib.suppress(error):
            yield
    finally:
        sys.settrace(previous)
