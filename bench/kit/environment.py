"""The environment of the peers, beside .venv, so that what they bring never meets what ulak needs."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PEERS_VENV = ROOT / ".venv-peers"
PEERS_PYTHON = PEERS_VENV / "bin/python"
STAMP = PEERS_VENV / "installed-by-bench.txt"
# Held to one series each, so that a figure changes only when this list does.
PEERS = (
    "celery ==5.7.*",
    "dramatiq ==2.2.*",
    "dramatiq-sqlite ==0.1.*",
    "huey ==3.5.*",
    "SQLAlchemy ==2.0.*",
    "taskiq ==0.13.*",
)
FAILED = 2  # exit status when there is nothing to measure with
PIP_SETTINGS = {"PIP_NO_INPUT": "1", "PIP_QUIET": "2", "PIP_REQUIRE_VIRTUALENV": "0", "PIP_USER": "0"}


def prepare_peers():
    """Make the environment hold the peers, on this very Python, unless it does; return its interpreter.

    The stamp goes before anything is changed and comes back last: without it everything is made anew.
    """
    PEERS_VENV.mkdir(exist_ok=True)
    folder = os.open(PEERS_VENV, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # Another run may be installing.
        expected = f"{sys.version} {' '.join(PEERS)}\n"
        if not STAMP.exists() or STAMP.read_text() != expected:
            STAMP.unlink(missing_ok=True)
            install()
            STAMP.write_text(expected)
    finally:
        os.close(folder)
    return PEERS_PYTHON


def install():
    print(f"installing {', '.join(PEERS)} in {PEERS_VENV.name}", file=sys.stderr, flush=True)
    base = getattr(sys, "_base_executable", None) or sys.executable
    run(base, "-m", "venv", "--clear", "--without-pip", PEERS_VENV)
    # Nothing in there is the project's: git, and the checks that ask git's files, pass it over.
    (PEERS_VENV / ".gitignore").write_text("*\n")
    run(sys.executable, "-m", "pip", "--python", PEERS_PYTHON, "install", *PEERS)


def run(*command):
    if subprocess.run(command, env=os.environ | PIP_SETTINGS, check=False).returncode != 0:
        print(f"bench: failed, as told above: {' '.join(map(str, command))}", file=sys.stderr)
        print("  without the peers: --no-peers", file=sys.stderr)
        sys.exit(FAILED)


def versions(python, names):
    """The installed version of each of these distributions."""
    code = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]), sep='\\n')"
    found = subprocess.run([python, "-c", code, *names], check=True, capture_output=True, text=True)
    return dict(zip(names, found.stdout.split(), strict=True))
