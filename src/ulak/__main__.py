"""`python -m ulak` is the `ulak` command, and so is the script that is installed."""

import signal
import sys


def main() -> int:
    """Run the command; its exit status."""
    # Before the imports that take time: a signal waits until a command knows what to do about it.
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    from ulak import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
