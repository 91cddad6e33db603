#!/usr/bin/env python3
"""Work on ulak with nothing but Python 3.11 or newer.

  python3 dev.py demo [ARG ...]             watch a bounded queue do its work under injected failures
  python3 dev.py test [ARG ...]             run the tests; each ARG goes to pytest
  python3 dev.py check                      lint, format, types, layers
  python3 dev.py bench [NAME [ARG ...]]     run bench/NAME.py; without a name, list what there is
  python3 dev.py campaign [NAME [ARG ...]]  run tests/campaigns/NAME.py; without a name, likewise
  python3 dev.py pg -- COMMAND [ARG ...]    run a command with ULAK_URL set to a PostgreSQL of its own

The first call makes .venv beside this file and installs there what the command needs.
"""

import os
import sys

if sys.version_info < (3, 11) or os.name != "posix":
    sys.exit("dev.py: needs Python 3.11 or newer, on Linux or macOS; this is " + sys.version.split()[0] + ".")

import fcntl
import hashlib
import subprocess
from pathlib import Path
from typing import NoReturn

# Put before the arguments of `test`. One more than the processors of a small machine: many tests wait.
PYTEST_OPTIONS = ("-n", "3")
CHECKS = ("ruff check .", "ruff format --check .", "mypy --strict", "lint-imports --no-logo")
PROGRAMS = {"bench": "bench", "campaign": "tests/campaigns"}

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
STAMP = VENV / "installed-by-dev.py"
# Never the interpreter of an active virtual environment: that may be the one about to be replaced.
PYTHON = str(getattr(sys, "_base_executable", None) or sys.executable)
# pip asks nobody, and a user's own settings do not lead it out of .venv.
PIP_SETTINGS = {"PIP_NO_INPUT": "1", "PIP_QUIET": "2", "PIP_REQUIRE_VIRTUALENV": "0", "PIP_USER": "0"}
if not os.access(Path("~").expanduser(), os.W_OK):
    PIP_SETTINGS["PIP_NO_CACHE_DIR"] = "1"


def say(text: str) -> None:
    print(f"dev.py: {text}", file=sys.stderr, flush=True)


def prepare(extra: str = "[test]") -> None:
    """Make .venv hold ulak with this extra ("" for none), unless it does already, and enter it.

    The stamp is removed before .venv changes and written after. Without it the last installation
    was interrupted, and .venv is thrown away: pip cannot repair a package that it half wrote.
    """
    base = f"{PYTHON} {sys.version!r} {ROOT}\n"
    project = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    good = {f"{base}{project} {installed}\n" for installed in (extra, "[test]")}
    if read_stamp() not in good:
        lock = lock_out_others()
        found = read_stamp()
        if found not in good:
            STAMP.unlink(missing_ok=True)
            if not found.startswith(base):
                make_environment()
            say(f"installing ulak{extra}")
            run(VENV / "bin/python", "-m", "pip", "install", "--editable", f"{ROOT}{extra}")
            STAMP.write_text(f"{base}{project} {extra}\n")
        os.close(lock)
    os.environ["PATH"] = f"{VENV / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def read_stamp() -> str:
    return STAMP.read_text() if STAMP.exists() else ""


def lock_out_others() -> int:
    """Wait until no other call installs, and keep them waiting until the file returned is closed."""
    lock = os.open(ROOT / ".venv.lock", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(lock, True)  # A step of the installation may outlive this process.
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("waiting for another dev.py to finish installing")
        fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def make_environment() -> None:
    """Put a new virtual environment that has pip in the place of .venv."""
    say(f"making .venv with Python {sys.version.split()[0]}")
    run(PYTHON, "-m", "venv", "--clear", "--without-pip", VENV)
    if run(VENV / "bin/python", "-m", "ensurepip", "--default-pip", is_trial=True):
        return
    # Debian packages ensurepip apart. Its pip refuses to install for everyone, but not into a folder.
    if not run(PYTHON, "-m", "pip", "--version", is_trial=True):
        sys.exit(f"dev.py: {PYTHON} has neither ensurepip nor pip (on Debian: apt install python3-venv).")
    packages = VENV / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    run(PYTHON, "-m", "pip", "install", "--target", packages, "pip")


def run(*command: str | Path, is_trial: bool = False) -> bool:
    """Run a step of the installation; one that fails stops everything, unless it is a trial."""
    options = {"stdin": subprocess.DEVNULL, "capture_output": is_trial, "close_fds": False}
    is_done = subprocess.run(command, env=os.environ | PIP_SETTINGS, check=False, **options).returncode == 0
    if not is_done and not is_trial:
        sys.exit(f"dev.py: failed, as told above: {' '.join(map(str, command))}")
    return is_done


def become(*command: str) -> NoReturn:
    """Turn this process into the command: it gets the signals, and its exit code is ours."""
    say(" ".join(command))
    os.execvp(command[0], command)


def check() -> None:
    """Run every check, also after one that failed."""
    failed = []
    for line in CHECKS:
        say(line)
        if subprocess.run(line.split(), stdin=subprocess.DEVNULL, check=False).returncode != 0:
            failed.append(line)
    if failed:
        sys.exit(f"dev.py: failed: {', '.join(failed)}")


def main(command: str = "", *arguments: str) -> None:
    if command == "demo":
        prepare("")
        become("ulak", "demo", *arguments)
    os.chdir(ROOT)
    if command in PROGRAMS:
        folder = PROGRAMS[command]
        names = sorted(path.stem for path in Path(folder).glob("[!_]*.py"))
        if not arguments or arguments[0] not in names:
            sys.exit(f"dev.py: {folder} has {', '.join(names) or 'nothing yet'}")
        prepare()
        become("python", "-m", f"{folder.replace('/', '.')}.{arguments[0]}", *arguments[1:])
    if command == "pg":
        prepare()
        become("python", "-m", "tests.support.postgres", *arguments)
    if command not in {"test", "check"}:
        print(__doc__)
        sys.exit(0 if command in {"", "-h", "--help"} else 2)
    prepare()
    check() if command == "check" else become("pytest", *PYTEST_OPTIONS, *arguments)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        sys.exit(f"dev.py: {error}.")
