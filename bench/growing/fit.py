"""How a cost grows: the exponent of the power of the size that fits it best."""

from __future__ import annotations

import math


def exponent(points):
    """e, where cost is about size**e: 0 is flat, 1 is as much more as there is. None of fewer than two sizes.

    points: (size, cost), all above 0. The slope of the best straight line through their logarithms.
    """
    logs = [(math.log(size), math.log(cost)) for size, cost in points if size > 0 and cost > 0]
    if len({x for x, _ in logs}) < 2:
        return None
    mean_x = sum(x for x, _ in logs) / len(logs)
    mean_y = sum(y for _, y in logs) / len(logs)
    spread = sum((x - mean_x) ** 2 for x, _ in logs)
    return sum((x - mean_x) * (y - mean_y) for x, y in logs) / spread


def costs(figure, by_size):
    """(size, cost) of a figure: what a rate costs is its inverse, the time for a job."""
    is_rate = figure == "rate"
    return [(size, 1 / value if is_rate else value) for size, value in by_size.items() if value > 0]
