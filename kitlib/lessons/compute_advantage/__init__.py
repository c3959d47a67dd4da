"""Notebook 08: toy answers, estimators side by side, checks that name the mistake.

toys.py          a few answers as padded columns, and the numbers that each estimator asks for
side_by_side.py  one line an estimator, one column an answer; the same as a heat map; what a success is worth
checks.py        checks of predicted advantages
own.py           check of an estimator that the reader has written
"""

from kitlib.lessons.compute_advantage.checks import check_gae, check_grpo, check_sessions
from kitlib.lessons.compute_advantage.own import check_median_baseline
from kitlib.lessons.compute_advantage.side_by_side import SideBySide, heat_map, plot_success, side_by_side
from kitlib.lessons.compute_advantage.toys import queue_columns, toy_columns, two_groups

__all__ = [
    "SideBySide",
    "check_gae",
    "check_grpo",
    "check_median_baseline",
    "check_sessions",
    "heat_map",
    "plot_success",
    "queue_columns",
    "side_by_side",
    "toy_columns",
    "two_groups",
]
