"""The contract's state machine, much longer than in the suite: `contract [EXAMPLES]`."""

from __future__ import annotations

import os
import subprocess
import sys

EXAMPLES = 1000


def main() -> int:
    examples = sys.argv[1] if len(sys.argv) > 1 else str(EXAMPLES)
    print(f"contract: {examples} examples for each storage", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", "--timeout=3600", "tests/contract/test_machine.py"]
    return subprocess.run(command, env=os.environ | {"ULAK_EXAMPLES": examples}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
