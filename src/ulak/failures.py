"""Simulated failures that can be foretold: which attempts of a demo fail depends on its seed alone."""

from __future__ import annotations

from hashlib import blake2b

from ulak.errors import ArgumentError


def fails(seed: int, ordinal: int, attempt: int, rate: float) -> bool:
    """Whether this attempt of this job fails, with probability `rate`.

    A pure function of its arguments, the same on every platform and Python version, and independent between
    any two different (seed, ordinal, attempt).
    seed: any int. ordinal: the job's number in the run, from 1. attempt: from 1.
    rate: 0 (never) to 1 (always). Raises ArgumentError outside.

    >>> [attempt for attempt in range(1, 11) if fails(7, 1, attempt, 0.3)]
    [2, 3, 9]
    """
    if not 0 <= rate <= 1:
        raise ArgumentError("rate must be a probability from 0 to 1")
    # Hexadecimal: an int of any size has it, whatever limit the interpreter sets on decimal digits.
    digest = blake2b(b"%x:%x:%x" % (seed, ordinal, attempt), digest_size=8).digest()
    # The top 53 bits fit a float exactly, so the draw is below 1 and rate 1 always fails.
    return (int.from_bytes(digest, "big") >> 11) * 2.0**-53 < rate


def predict(seed: int, jobs: int, max_attempts: int, rate: float) -> tuple[int, int]:
    """How a run must end if nothing but `fails` makes attempts fail: (succeeded, dead_lettered).

    jobs: how many, with ordinals 1 to jobs. max_attempts: at least 1.
    Raises ArgumentError for jobs < 0, max_attempts < 1 and a rate outside 0 to 1.
    """
    if jobs < 0 or max_attempts < 1:
        raise ArgumentError("predict() needs jobs >= 0 and max_attempts >= 1")
    attempts = range(1, max_attempts + 1)
    dead_lettered = sum(
        all(fails(seed, ordinal, attempt, rate) for attempt in attempts) for ordinal in range(1, jobs + 1)
    )
    return jobs - dead_lettered, dead_lettered
