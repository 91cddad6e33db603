"""The peers that work on PostgreSQL, beside those of the other benchmarks. What cannot be had is told."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys

from bench.kit import environment

# Side -> its distributions, held to one series each.
DISTRIBUTIONS = {
    "pgqueuer": ("pgqueuer ==1.6.*", "asyncpg ==0.32.*", "uvloop ==0.23.*"),
    "procrastinate": ("procrastinate ==3.10.*", "psycopg[binary,pool] ==3.3.*", "uvloop ==0.23.*"),
}
LEFT_OUT = {
    "oban": "its package is for newer versions of Python than the project's lowest",
    "absurd": "its package does not bring the schema that it needs",
}
STAMP = environment.PEERS_VENV / "installed-by-bench-postgres.txt"


def prepare():
    """Install what can be; the sides that cannot run, with the reason."""
    python = environment.prepare_peers()
    folder = os.open(environment.PEERS_VENV, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # Another run may be installing.
        expected = f"{DISTRIBUTIONS}\n"
        if not STAMP.exists() or STAMP.read_text() != expected:
            STAMP.unlink(missing_ok=True)
            for wanted in DISTRIBUTIONS.values():
                install(wanted)
        missing = {side: why for side in DISTRIBUTIONS if (why := failing(python, side))}
        if not missing:  # else the next run tries again: it may only have been the network
            STAMP.write_text(expected)
    finally:
        os.close(folder)
    return missing


def install(wanted):
    print(f"installing {', '.join(wanted)} in {environment.PEERS_VENV.name}", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "pip", "--python", str(environment.PEERS_PYTHON), "install", *wanted]
    subprocess.run(command, env=os.environ | environment.PIP_SETTINGS, capture_output=True, check=False)


def failing(python, side):
    """Why a side cannot run, or ''."""
    command = [python, "-c", f"import {side}, uvloop"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""
