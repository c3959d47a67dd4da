"""Notebook 09: the actor update, looked at without changing a weight, and things to predict, write and find.

looking.py      the gradient and the metrics of an update that is not made; the metrics of each mini-batch
checks.py       predictions: what is clipped, how a loss is averaged, what the first printed loss is
own_loss.py     a policy loss that a reader has registered: is it right, and does it survive a cut?
faults.py       four broken updates to tell apart by their metrics
two_ranks.py    a layer cut over two processes
"""

from kitlib.lessons.update_actor.checks import check_aggregation, check_first_loss, check_moving
from kitlib.lessons.update_actor.faults import BrokenUpdates, broken_updates
from kitlib.lessons.update_actor.looking import Look, dry_run, learning_rates, mini_batches, numbers
from kitlib.lessons.update_actor.own_loss import check_policy_loss
from kitlib.lessons.update_actor.two_ranks import TwoRanks, run_two_ranks

__all__ = [
    "BrokenUpdates",
    "Look",
    "TwoRanks",
    "broken_updates",
    "check_aggregation",
    "check_first_loss",
    "check_moving",
    "check_policy_loss",
    "dry_run",
    "learning_rates",
    "mini_batches",
    "numbers",
    "run_two_ranks",
]
