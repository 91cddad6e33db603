"""The contract's state machine and seeded runs, many more than in the suite: `contract [EXAMPLES]`."""

from __future__ import annotations

import os
import subprocess
import sys

EXAMPLES = 1000


def main() -> int:
    examples = sys.argv[1] if len(sys.argv) > 1 else str(EXAMPLES)
    print(f"contract: {examples} examples for each storage", flush=True)
    files = [f"tests/contract/{name}.py" for name in ("test_machine", "test_parity_properties")]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--timeout=3600", *files]
    return subprocess.run(command, env=os.environ | {"ULAK_EXAMPLES": examples}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
