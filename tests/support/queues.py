"""Handles on one queue, for as long as a test runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, TypeAlias

from ulak import Queue

Make: TypeAlias = Callable[..., Queue]


@contextlib.contextmanager
def handles(url: str, name: str = "default", **common: Any) -> Iterator[Make]:
    """Opens handles, with these options unless told otherwise, and closes them in the end."""
    with ExitStack() as opened:

        def make(name: str = name, *, url: str = url, **options: Any) -> Queue:
            return opened.enter_context(Queue(url, name, **{**common, **options}))

        yield make
