"""`python leash.py PARENT_PID COMMAND ...` turns into the command, which ends with that parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with(parent_pid: int) -> None:
    """Have this process killed when its parent dies; where that can be said it also reaches a frozen one."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent_pid:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
