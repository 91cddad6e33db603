"""What tests need: a clock they own, and the jobs of every App in a store of the test's own."""

from ulak.testing.clock import ManualClock
from ulak.testing.jobs import Jobs
from ulak.testing.seen import EnqueuedJob

__all__ = ["EnqueuedJob", "Jobs", "ManualClock"]
