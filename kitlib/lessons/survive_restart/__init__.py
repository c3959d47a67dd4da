"""Notebook 12: a run is killed, goes on, and nothing is lost.

child.py      a training run in a process of its own that kills itself while it saves
checks.py     checks of predictions: where it goes on, what is lost without the loader's place, what is submitted again
stale.py      a checkpoint of which one file is from the step before, to be found
"""

from kitlib.lessons.survive_restart.checks import (
    check_first_step,
    check_never_trained,
    check_reissue,
    trained_questions,
)
from kitlib.lessons.survive_restart.child import run_until_killed
from kitlib.lessons.survive_restart.stale import StaleFile, mix_checkpoint

__all__ = [
    "StaleFile",
    "check_first_step",
    "check_never_trained",
    "check_reissue",
    "mix_checkpoint",
    "run_until_killed",
    "trained_questions",
]
