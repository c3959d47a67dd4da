"""Notebook 11: old weights made visible, checks of predictions, and a row that lies about its weights.

interruption.py   stop a server in the middle of its answers; what it had, and which rows begin with it
running.py        a few steps of training that repeat themselves
checks.py         which groups are too old, how much was kept, importance weights by hand
false_version.py  a tag that names other weights than those that wrote the row
"""

from kitlib.lessons.stay_on_policy.checks import check_dropped, check_kept, check_weights
from kitlib.lessons.stay_on_policy.false_version import plant_false_version
from kitlib.lessons.stay_on_policy.interruption import Half, Interruption, interrupt_after
from kitlib.lessons.stay_on_policy.running import largest_difference, run_steps

__all__ = [
    "Half",
    "Interruption",
    "check_dropped",
    "check_kept",
    "check_weights",
    "interrupt_after",
    "largest_difference",
    "plant_false_version",
    "run_steps",
]
