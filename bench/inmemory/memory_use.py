"""How much memory jobs take: while they wait, by tracemalloc, and after they have gone, by the system."""

from __future__ import annotations

import gc
import os
import tracemalloc
from pathlib import Path

from bench.inmemory.loops import PAYLOAD_BYTES, priorities

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def rss_mb():
    """Resident memory of this process now, in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES / 1e6


def bytes_per_job(enqueue, jobs, unit=b"."):
    """What a waiting job takes, its own payload included."""
    enqueue(unit, 0)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for priority in priorities(jobs):
        enqueue(unit * PAYLOAD_BYTES, priority)
    gc.collect()
    return {"bytes": (tracemalloc.get_traced_memory()[0] - before) / jobs}


def mb_kept(enqueue, drain, jobs):
    """What a process has not given back after it held `jobs` jobs at once and finished them."""
    byte = b"."
    enqueue(byte, 0)
    gc.collect()
    before = rss_mb()
    for priority in priorities(jobs):
        enqueue(byte * PAYLOAD_BYTES, priority)
    drain()
    gc.collect()
    return {"mb": rss_mb() - before}
