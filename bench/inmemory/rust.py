"""Figures of two Rust programs for the same workloads, to be seen beside ours. They were measured elsewhere.

The queue is a crate with the same calls (one binary heap, one mutex, no retries, no capacity); the pool is a
stand-in for a tokio worker pool, written from its description.
"""

from __future__ import annotations

QUEUE = "Rust queue"
POOL = "tokio pool"
MACHINES = {
    QUEUE: "2 vCPU, Debian 12, release build, 1,000,000 jobs with strings of 16 bytes, median of 5",
    POOL: "2 vCPU, Debian 12, release build, tokio 1.24.2, 4 workers unless said",
}
# Case -> rows of (program, what was measured if it is not quite the same, figures).
ROWS = {
    "W1": [(QUEUE, "", {"rate": 2_490_000})],
    "W2": [(QUEUE, "1,000,000 waiting", {"rate": 780_000})],
    "W3": [(QUEUE, "", {"rate": 1_390_000})],
    "W5-1": [(POOL, "capacity 1,024, one runtime thread", {"rate": 2_400_000})],
    "W5-4": [(POOL, "capacity 1,024", {"rate": 2_290_000})],
    "W6": [(POOL, "capacity 1,024", {"rate": 2_290_000})],
    "W7-asleep": [
        (POOL, "20,000 jobs/s, capacity 64, to the end of the handler", {"p50_us": 4, "p99_us": 17})
    ],
    "W8-job": [(QUEUE, "string of 16 bytes", {"bytes": 226})],
}
