"""What a store does to jobs, as steps: enqueue, claim, settle, extend, and the looks that go with them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ulak.core.job import Draft, Full, Lease, Outcome
from ulak.core.store import Settled, Settlement, Tasks
from ulak.storage.postgres.asks import Scene, Step


def add(
    scene: Scene, queue: str, drafts: Sequence[Draft], *, known_only: bool = False
) -> Step[list[int] | Full]:
    """Store jobs, all or none."""
    raise NotImplementedError


def add_together(scene: Scene, queue: str, calls: Sequence[Sequence[Draft]]) -> Step[list[list[int] | Full]]:
    """Several calls of `add` in one; each is answered as if it had come alone."""
    raise NotImplementedError


def unadd(scene: Scene, ids: Sequence[int]) -> Step[None]:
    """Take back jobs whose caller was cancelled meanwhile, unless somebody has touched them."""
    raise NotImplementedError


def claim(
    scene: Scene,
    queues: Sequence[str],
    limit: int,
    *,
    worker: str,
    lease_s: float,
    tasks: Tasks | None = None,
) -> Step[list[Lease]]:
    """Lease up to `limit` due jobs, in order, for the scene's holder."""
    raise NotImplementedError


def promote(scene: Scene, queues: Sequence[str]) -> Step[int]:
    """Make due jobs ready; how many."""
    raise NotImplementedError


def settle(scene: Scene, settlements: Sequence[Settlement]) -> Step[list[Settled]]:
    """Apply verdicts, one answer per settlement."""
    raise NotImplementedError


def settle_together(scene: Scene, calls: Sequence[Sequence[Settlement]]) -> Step[list[list[Settled]]]:
    """Several calls of `settle` in one."""
    raise NotImplementedError


def turn(
    scene: Scene,
    settlements: Sequence[Settlement],
    queues: Sequence[str],
    limit: int,
    *,
    worker: str,
    lease_s: float,
    tasks: Tasks | None = None,
) -> Step[tuple[list[Settled], list[Lease]]]:
    """Settle, then claim."""
    raise NotImplementedError


def turn_together(
    scene: Scene,
    calls: Sequence[tuple[Sequence[Settlement], int]],
    queues: Sequence[str],
    *,
    worker: str,
    lease_s: float,
    tasks: Tasks | None = None,
) -> Step[list[tuple[list[Settled], list[Lease]]]]:
    """Several calls of `turn` in one, each with its settlements and limit."""
    raise NotImplementedError


def extend(
    scene: Scene, leases: Sequence[Lease], lease_s: float, *, progress: Mapping[int, str] | None = None
) -> Step[list[bool | Outcome]]:
    """Move lease ends to now + `lease_s`, never to earlier."""
    raise NotImplementedError


def ended(
    scene: Scene, queues: Sequence[str], limit: int, *, gone: Collection[int] = ()
) -> Step[list[Lease]]:
    """Leases past their end, or whose holder is one of `gone`."""
    raise NotImplementedError


def leased(
    scene: Scene, queue: str, *, worker: str | None = None, after: int = 0, limit: int = 100
) -> Step[list[Lease]]:
    """The current leases of a queue, by id; of one worker of the scene's holder, if given."""
    raise NotImplementedError


def horizon(scene: Scene, queues: Sequence[str]) -> Step[float | None]:
    """Seconds until time alone makes a job claimable; presence is not looked at."""
    raise NotImplementedError
