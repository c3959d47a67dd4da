"""Notebook 06: reward functions good and bad, a server that is sometimes down, rewards to find.

rules.py     reward functions for a lesson, most of them with a flaw
checks.py    checks of scores, of the place of a reward, of retries, and of the reader's own rule
server.py    a scoring server on this machine, with the troubles of a real one
scoring.py   sessions out of the queue, rewards computed again, a reward model, mixed-up rewards
"""

from kitlib.lessons.compute_reward.checks import check_num_requests, check_position, check_rule, check_scores
from kitlib.lessons.compute_reward.scoring import (
    fence,
    make_reward_model,
    rescore,
    rows_there,
    session_of,
    swap_rewards,
    texts_of,
)
from kitlib.lessons.compute_reward.server import ScoringServer, count_requests

__all__ = [
    "ScoringServer",
    "check_num_requests",
    "check_position",
    "check_rule",
    "check_scores",
    "count_requests",
    "fence",
    "make_reward_model",
    "rescore",
    "rows_there",
    "session_of",
    "swap_rewards",
    "texts_of",
]
