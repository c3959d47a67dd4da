"""Notebook 10: the loop in four ways. bench/modes.py measures with the same parts.

scripted.py   a server and a worker that take as long as a script says and compute nothing
running.py    one run of a mode: its time line and its staleness; what overlaps with what
calls.py      what `fit` calls, in order; an observer that presses Ctrl-C
checks.py     predictions about the loop and the modes; a slow run to explain
"""

from kitlib.lessons.fit_four_ways.calls import CallLog, PressCtrlC
from kitlib.lessons.fit_four_ways.checks import (
    SlowRun,
    check_bound,
    check_modes,
    check_num_prompts,
    check_order_of_calls,
    slow_run,
)
from kitlib.lessons.fit_four_ways.running import ModeRun, RewardCurve, Staleness, pace_table, run_mode
from kitlib.lessons.fit_four_ways.scripted import Script, ScriptedServer, ScriptedWorker, put_in_place

__all__ = [
    "CallLog",
    "ModeRun",
    "PressCtrlC",
    "RewardCurve",
    "Script",
    "ScriptedServer",
    "ScriptedWorker",
    "SlowRun",
    "Staleness",
    "check_bound",
    "check_modes",
    "check_num_prompts",
    "check_order_of_calls",
    "pace_table",
    "put_in_place",
    "run_mode",
    "slow_run",
]
