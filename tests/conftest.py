"""What holds for every suite: how Hypothesis draws its examples, and that Ctrl-C means what it does.

Where CI is set every run draws the same ones, so that a change is judged by what it changes, and a failure
prints what repeats it elsewhere. Anywhere else each run draws new ones.
"""

from __future__ import annotations

import importlib.util
import os
import signal

from hypothesis import settings

from tests.support import births

IS_CI = os.environ.get("CI", "") not in {"", "0", "false"}

# No deadline: how long one example takes says more about the machine than about the code.
settings.register_profile("ulak", deadline=None, derandomize=IS_CI, print_blob=IS_CI)
settings.load_profile("ulak")

if importlib.util.find_spec("psycopg") is not None:
    births.tell()

# A shell has what it starts with & ignore it, and every process of a test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
