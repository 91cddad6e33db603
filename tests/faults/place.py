"""Where images are written: in memory, so that thousands of them wear out no disk."""

from __future__ import annotations

import os
import tempfile

_MEMORY = "/dev/shm"
FAST = _MEMORY if os.access(_MEMORY, os.W_OK) else tempfile.gettempdir()
