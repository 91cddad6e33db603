"""The peers with a file, put beside those of the other benchmarks. What cannot be installed is told, no more.

Some have no wheel for every system or Python, and none of them is worth a run that cannot start.
"""

from __future__ import annotations

import ctypes.util
import fcntl
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from bench.kit import environment

# Side -> its distribution, held to one series each; litequeue's own is the newest for the Python it runs on.
DISTRIBUTIONS = {
    "persist-queue": "persist-queue ==1.1.*",
    "litequeue": "litequeue >=0.9,<0.15",
    "honker": "honker ==0.5.*",
    "flexiq": "flexiq ==2.1.*",
}
MODULES = {"persist-queue": "persistqueue", "litequeue": "litequeue", "honker": "honker", "flexiq": "flexiq"}
STAMP = environment.PEERS_VENV / "installed-by-bench-sqlite.txt"
# honker's wheel is for glibc 2.38, but only the SQLite library in it needs that; the system's does not.
HONKER_PLATFORM = "manylinux_2_38_x86_64"


def prepare():
    """Install what can be; the sides that cannot run, with the reason."""
    python = environment.prepare_peers()
    folder = os.open(environment.PEERS_VENV, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # Another run may be installing.
        expected = f"{' '.join(DISTRIBUTIONS.values())}\n"
        if not STAMP.exists() or STAMP.read_text() != expected:
            STAMP.unlink(missing_ok=True)
            for side in DISTRIBUTIONS:
                install(side)
        missing = {side: why for side in DISTRIBUTIONS if (why := failing(python, side))}
        if not missing:  # else the next run tries again: it may only have been the network
            STAMP.write_text(expected)
    finally:
        os.close(folder)
    return missing


def install(side):
    print(f"installing {DISTRIBUTIONS[side]} in {environment.PEERS_VENV.name}", file=sys.stderr, flush=True)
    if not pip("--only-binary", ":all:", DISTRIBUTIONS[side]) and side == "honker":
        packages = next(environment.PEERS_VENV.glob("lib/python*/site-packages"))
        options = ("--no-deps", "--only-binary", ":all:", "--platform", HONKER_PLATFORM, "--target", packages)
        if pip(*options, "--upgrade", DISTRIBUTIONS[side]):
            replace_library(packages)


def pip(*arguments):
    command = [sys.executable, "-m", "pip", "--python", environment.PEERS_PYTHON, "install", *arguments]
    done = subprocess.run(
        list(map(str, command)), env=os.environ | environment.PIP_SETTINGS, capture_output=True, check=False
    )
    return done.returncode == 0


def replace_library(packages):
    """Put the system's SQLite in the place of honker's own, if that does not load."""
    ours = system_library()
    if ours is not None and failing(environment.PEERS_PYTHON, "honker"):
        for theirs in packages.glob("honker.libs/libsqlite3*"):
            shutil.copyfile(ours, theirs)


def system_library():
    """Where the SQLite library of this system lies, or None."""
    name = ctypes.util.find_library("sqlite3")
    if name is None:
        return None
    listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    found = re.search(rf"^\s*{re.escape(name)} .*=> (\S+)$", listed, re.MULTILINE)
    return Path(found[1]) if found else None


def failing(python, side):
    """Why a side cannot run, or ''."""
    command = [python, "-c", f"import {MODULES[side]}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""
