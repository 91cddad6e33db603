"""What the page of the comparison says around its tables."""

from __future__ import annotations

INTRO = """\
# ulak beside others, measured

Written by `python3 dev.py bench all`, which runs everything anew on your machine; do not edit it. What
made the figures so, and where ulak is behind, is in [performance.md](performance.md).

A figure is the median of several rounds, with the lowest and the highest in brackets, each round a
process and a store of its own, the sides by turns. `ulak x` is ulak's figure over theirs: of a rate above
1 is better, of a latency or of memory below 1. Look at ratios: other machines have other absolutes.
Settings are those with which each library is at its best here, and no defaults that only cost it time,
such as polling once a second.
"""

AGAIN = "A figure is called noisy where it is more than 15 % from that of the run before."
ONCE = "One run: a second `bench all` tells which figures are noisy."
QUICK = "**Quick: small backlogs and few rounds. Only a full run says anything.**"

LOAD = """\
Jobs that do nothing come at a rate, at random, whatever becomes of those before: `ulak bench {options}`.
With failures, a tenth of all attempts raises: the first attempts show what that does to the queue, and
the rest of the tail is the backoff, of 10 ms to 1 s.
"""

KILLED = """\
{jobs} jobs of a second, {concurrency} at the same time. After {alive_s} s the worker is killed (SIGKILL),
and another one is started at once, as whatever watches over workers would; then at most {wait_s:g} s are
waited for. again: of the killed jobs, so many ran once more, and so long after the kill. lost: neither
done nor stored any more. stuck: stored, and not done. All with their defaults.
"""

GROWTH = """\
The exponent of the power of the size that a cost grows with: 0 is flat, 1 is twice for twice as much. Of
a rate the cost is the time for a job. **Bold** is what should be flat and is not.
"""

STATUSES = {
    0: "all targets reached",
    1: "some targets not reached",
    3: "**not valid**: run it again on a quiet machine",
}

NOTES = {
    "memory": "Each call by the library's own API, or a plain loop over it.",
    "sqlite": "What is fsynced when stands under [settings](#versions-and-settings).",
    "postgres": "One server on this machine, durable as it comes; callers and server share its processors.",
    "tasks": "On a file each library runs by its own worker command.",
}
