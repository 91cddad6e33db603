"""All jobs of a memory store, by id."""

from __future__ import annotations

from collections.abc import Iterable

from ulak.core.job import Job

_REBUILD_ABOVE = 65_536


class Registry:
    """A dict that gives its memory back: a plain one keeps its largest table for ever."""

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}
        self._peak = 0

    def get(self, job_id: int) -> Job | None:
        """The job, or None where the id is unknown."""
        return self._jobs.get(job_id)

    def put(self, job: Job) -> None:
        """Take in a job whose id is higher than all before."""
        self._jobs[job.id] = job
        self._peak = max(self._peak, len(self._jobs))

    def drop(self, job_id: int) -> None:
        """Forget a job."""
        del self._jobs[job_id]
        if self._peak > _REBUILD_ABOVE and len(self._jobs) < self._peak // 4:
            self._jobs = dict(self._jobs)
            self._peak = len(self._jobs)

    def all(self) -> Iterable[Job]:
        """Every job, by id: ids only grow, and each is put in once."""
        return self._jobs.values()

    def after(self, job_id: int, last_id: int) -> Iterable[Job]:
        """Every job with a higher id, by id; costs no more than those ids, or than all jobs."""
        if last_id - job_id > len(self._jobs):
            return (job for job in self._jobs.values() if job.id > job_id)
        between = (self._jobs.get(known) for known in range(job_id + 1, last_id + 1))
        return (job for job in between if job is not None)

    def __len__(self) -> int:
        return len(self._jobs)
