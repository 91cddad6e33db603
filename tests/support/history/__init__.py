"""Histories of what callers of a store were told, and one judge of them for all stores.

Each thread of each process puts `Recorded(store, Pen(history, time.monotonic), who)` before the store; with
`History(path)` what it was told outlives a kill. In the end

    verdict = judge([*merged(paths), *stored_lines(store, queues)], capacity={"mail": 8}, slack_s=0.01)

says what the history shows: a good one has no `verdict.problems`; `print(verdict)` tells it in a few lines.
"""

from tests.support.history.judge import Problem, Verdict, judge
from tests.support.history.lines import History, encoded, merged
from tests.support.history.recorder import Pen, Recorded, stored_lines

__all__ = ["History", "Pen", "Problem", "Recorded", "Verdict", "encoded", "judge", "merged", "stored_lines"]
