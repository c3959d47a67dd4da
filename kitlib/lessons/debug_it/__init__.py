"""Notebook 13: runs that are broken, each in another way, and the seven questions that find it.

runs.py     the broken runs: `broken_run("fields")`; what one sees of each is no help
own_grpo.py a formula that is almost right
answers.py  checks of what a reader has found
logs.py     what a terminal shows when a worker of a cluster dies: three errors, one cause
rewards.py  a run whose reward function fails in the middle; its folder stays
"""

from kitlib.lessons.debug_it.answers import check_factor, check_first_error, check_stop
from kitlib.lessons.debug_it.logs import RAY_LOG
from kitlib.lessons.debug_it.rewards import run_with_bad_reward
from kitlib.lessons.debug_it.runs import NAMES, BrokenRun, broken_run

__all__ = [
    "NAMES",
    "RAY_LOG",
    "BrokenRun",
    "broken_run",
    "check_factor",
    "check_first_error",
    "check_stop",
    "run_with_bad_reward",
]
