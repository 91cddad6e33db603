"""A worker for libraries that have none: threads that take a job, run it and finish it."""

from __future__ import annotations

import sys
import threading
import time

LOOK_S = 0.01


def command(module, concurrency):
    """What runs `module.take_one` in so many threads."""
    return [__name__, module, str(concurrency)]


def work(take_one):
    """take_one: makes what takes, runs and finishes a job, and says whether there was one."""
    take = take_one()
    while True:
        if not take():
            time.sleep(LOOK_S)


def main(module, concurrency):
    import importlib

    take_one = importlib.import_module(module).take_one
    threads = [threading.Thread(target=work, args=(take_one,)) for _ in range(int(concurrency))]
    for thread in threads:
        thread.start()


if __name__ == "__main__":
    main(*sys.argv[1:])
