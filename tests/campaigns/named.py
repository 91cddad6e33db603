"""The named defects of `tests.campaigns.mutants`: what is changed where, and which checks must find it."""

from __future__ import annotations

from dataclasses import dataclass

_CASES = ("tests/contract/test_storage_cases.py", "tests/contract/test_storage_queues.py")
_UPKEEP = ("tests/contract/test_storage_upkeep.py", "tests/contract/test_storage_waiting.py")
_RULES = ("tests/core/test_rules.py", *_CASES)
_SCENARIOS = ("tests/contract/test_scenarios_leases.py", "tests/contract/test_scenarios_order.py")
_FLOWS = ("tests/core/test_flows.py", "tests/core/test_flows_enqueue.py")
_RACES = ("tests/race/test_store_races.py", "tests/race/test_waiters.py")
_POOL = (
    "tests/worker/test_parity_pool.py",
    "tests/worker/test_parity_pool_ends.py",
    "tests/worker/test_pool.py",
)
_DIRECT = ("tests/storage/test_direct.py",)
_HELD = ("tests/contract/test_storage_refused.py",)
_ENDS = (
    "tests/contract/test_storage_ends.py",
    "tests/storage/test_ends.py",
    "tests/race/test_preempt_ends.py",
)
_MACHINE = ("tests/contract/test_machine.py",)


@dataclass(frozen=True)
class Mutant:
    """One defect: in `file`, the first `old` becomes `new`."""

    name: str
    file: str
    old: str
    new: str
    checks: tuple[str, ...]


MUTANTS = (
    # The state machine
    Mutant(
        "refund forgotten", "core/rules.py", "attempt=job.attempt - refund", "attempt=job.attempt", _RULES
    ),
    Mutant(
        "cancel beats ack", "core/rules.py", "event is not Event.ACK and job.cancel", "job.cancel", _RULES
    ),
    Mutant("crash not counted", "core/rules.py", "job.crashes + crashed", "job.crashes", _RULES),
    Mutant("one attempt too many", "core/rules.py", "attempt >= lease.max", "attempt > lease.max", _RULES),
    Mutant("held returns to ready", "core/rules.py", "Event.HOLD: {_L: _H}", "Event.HOLD: {_L: _R}", _RULES),
    Mutant("retry outlives expiry", "core/rules.py", "due_at >= job.expires_at", "due_at < 0", _RULES),
    Mutant("dead is not final", "core/rules.py", "Event.BURY: {_L: _DEAD}", "Event.BURY: {_L: _R}", _RULES),
    Mutant("reclaims not counted", "core/rules.py", '(*totals, "reclaimed")', "totals", _RULES),
    Mutant(
        "delay beyond the cap",
        "core/backoff.py",
        "widest = min(",
        "widest = max(",
        ("tests/core/test_backoff.py",),
    ),
    # The fence
    Mutant(
        "settle ignores the delivery",
        "storage/memory.py",
        " or row.delivery != lease.delivery",
        "",
        _CASES,
    ),
    Mutant(
        "settle ignores the state",
        "storage/memory.py",
        "row.state is not State.LEASED or row.delivery",
        "row.delivery",
        _CASES,
    ),
    Mutant(
        "reclaim ignores a moved lease end",
        "storage/memory.py",
        "verdict.cause is Cause.LOST and",
        "verdict is None and",
        _CASES,
    ),
    Mutant("delivery does not grow", "storage/memory.py", "row.delivery + 1,", "row.delivery,", _CASES),
    Mutant(
        "quick ack ignores the state",
        "storage/direct.py",
        "                row.state is _LEASED\n                and row.delivery",
        "                row.delivery",
        _DIRECT,
    ),
    Mutant(
        "quick deliver forgets what came before",
        "storage/direct.py",
        "if more is not None:",
        "if False:",
        _DIRECT,
    ),
    Mutant(
        "quick deliver takes what is gone",
        "storage/direct.py",
        "if row.state is _READY:",
        "if True:",
        _DIRECT,
    ),
    Mutant(
        "extend shortens", "storage/memory.py", "if lease_end > current.lease_end:", "if lease_end:", _CASES
    ),
    # Room
    Mutant(
        "quick enqueue overshoots",
        "storage/direct.py",
        "shelf.entered - shelf.left < capacity",
        "shelf.entered - shelf.left <= capacity",
        _DIRECT,
    ),
    Mutant("quick enqueue jumps the line", "storage/direct.py", " and not room_waiting", "", _DIRECT),
    Mutant(
        "duplicate takes a slot",
        "storage/memory.py",
        "if new and shelf.open + new > capacity:\n                return",
        "if shelf.open + len(drafts) > capacity:\n                return",
        (*_CASES, *_UPKEEP),
    ),
    Mutant(
        "an end frees no slot",
        "storage/shelf.py",
        "            self.left += 1\n            self._free(row)\n            self._over",
        "            self._free(row)\n            self._over",
        _CASES,
    ),
    Mutant(
        "a retry takes another slot",
        "storage/shelf.py",
        "        row.state = state\n        if not popped:\n",
        "        row.state = state\n        self.entered += state is State.READY\n        if not popped:\n",
        _MACHINE,
    ),
    Mutant(
        "unique key is never free again",
        "storage/shelf.py",
        "self.unique.pop(row.spec.unique_key, None)",
        "pass",
        (*_CASES, *_UPKEEP),
    ),
    Mutant(
        "waiters for room are not woken", "storage/shelf.py", "        self.ring(Until.ROOM)\n", "", _UPKEEP
    ),
    Mutant(
        "who leaves the line wakes nobody",
        "storage/line.py",
        "            self.ring(1)\n",
        "            pass\n",
        _RACES,
    ),
    # Order and time
    Mutant(
        "redelivered jobs go to the end",
        "storage/order.py",
        "lane.appendleft(row)",
        "lane.append(row)",
        (*_CASES, *_SCENARIOS),
    ),
    Mutant(
        "what came back between is last",
        "storage/order.py",
        "if back is not None and (first is None or (back[0], back[1].id) < (-first.priority, first.id)):",
        "if back is not None and first is None:",
        (*_CASES, *_SCENARIOS, *_MACHINE),
    ),
    Mutant(
        "due too early",
        "storage/shelf.py",
        "(head := self._due.head()) and head[0] <= now_at",
        "(head := self._due.head())",
        _CASES + _UPKEEP,
    ),
    Mutant(
        "claimed while paused",
        "storage/memory.py",
        " and not shelf.settings.paused:\n                self._claim",
        ":\n                self._claim",
        (*_CASES, *_UPKEEP),
    ),
    Mutant(
        "quick deliver looks at no clock",
        "storage/direct.py",
        "now < shelf.alarm and now_at < shelf.alarm_at and",
        "",
        _DIRECT,
    ),
    Mutant(
        "quick deliver notes no lease",
        "storage/direct.py",
        "                            leases[row.id] = lease\n",
        "",
        _DIRECT,
    ),
    Mutant(
        "expired jobs are claimed",
        "storage/memory.py",
        "        shelf.expire(now_at)\n        shelf.promote",
        "        shelf.promote",
        _CASES + _UPKEEP,
    ),
    # Counting and keeping
    Mutant(
        "totals counted twice",
        "storage/shelf.py",
        "getattr(self.totals, name) + 1",
        "getattr(self.totals, name) + 2",
        _CASES,
    ),
    Mutant(
        "succeeded jobs pile up",
        "storage/direct.py",
        "len(succeeded) > shelf.succeeded_max",
        "not shelf",
        _DIRECT,
    ),
    Mutant(
        "redrive keeps the attempts",
        "storage/acts.py",
        "0, row.delivery, False",
        "0, 0, False",
        _CASES + _UPKEEP,
    ),
    Mutant(
        "redrive of a held job needs room",
        "storage/acts.py",
        "if has_ended and shelf.capacity is not None",
        "if shelf.capacity is not None",
        _HELD,
    ),
    Mutant("refused jobs are taken", "storage/order.py", "if row.is_refused:", "if not row:", _HELD),
    Mutant(
        "an end is told to nobody", "storage/shelf.py", "if self._awaited.waiting:", "if not self:", _ENDS
    ),
    Mutant(
        "a quick ack is told to nobody",
        "storage/direct.py",
        "        if ends_waiting:\n",
        "        if 0:\n",
        _ENDS,
    ),
    Mutant("a line outlives its waiters", "storage/ends.py", "if not signals:", "if signals:", _ENDS),
    Mutant(
        "a line is joined outside its lock",
        "storage/ends.py",
        "        with self._lock:\n",
        "        if 1:\n",
        _ENDS,
    ),
    Mutant(
        "idempotency key is forgotten",
        "storage/memory.py",
        "shelf.remember_key(draft.idempotency_key, answer, now_at)",
        "pass",
        _CASES + _UPKEEP,
    ),
    Mutant(
        "an interrupt is not mended",
        "storage/mend.py",
        "    shelf.clear()\n",
        "    return\n",
        ("tests/storage",),
    ),
    # Calls of several steps
    Mutant(
        "enqueue after the end",
        "core/flows.py",
        "if local.finished and handler",
        "if not local and handler",
        _FLOWS,
    ),
    Mutant(
        "a closed handle keeps leases",
        "core/flows.py",
        "        released += yield from settle_for_others",
        "        yield from settle_for_others",
        _FLOWS,
    ),
    Mutant(
        "the reaper settles as alive",
        "core/flows.py",
        "rules.failure(lease, Cause.LOST,",
        "rules.failure(lease, Cause.NACK,",
        _FLOWS,
    ),
    # Workers
    Mutant(
        "workers leave too early",
        "worker/runtime.py",
        "return self.finished and (yield from flows.is_drained(self.queues))",
        "return self.finished",
        _POOL,
    ),
    Mutant(
        "shutdown keeps leases",
        "worker/runtime.py",
        "for queue in self.queues:\n                released +=",
        "for queue in ():\n                released +=",
        _POOL,
    ),
    Mutant(
        "leases are not renewed",
        "worker/keeper.py",
        "        if not running:\n",
        "        if running or not running:\n",
        (*_POOL, "tests/worker/test_scenarios_workers.py"),
    ),
)
