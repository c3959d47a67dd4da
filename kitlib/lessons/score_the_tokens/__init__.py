"""Notebook 07: checks of log-probs, cuts and ranks, scores under other settings, pictures, a shifted row.

checks.py     checks of a log-prob, of the positions of a response, of rows given to ranks
scores.py     the numbers of a batch as padded columns; the same tokens scored under other settings
two_rows.py   what differs between two rows, field by field and tag by tag
pictures.py   entropy along an answer; the server's probabilities against the trainer's
shifted.py    a row whose rollout log-probs belong to other tokens, to be found
"""

from kitlib.lessons.score_the_tokens.checks import check_log_prob, check_positions, check_ranks
from kitlib.lessons.score_the_tokens.pictures import plot_agreement, plot_entropy
from kitlib.lessons.score_the_tokens.scores import Agreement, agreement, log_probs_with
from kitlib.lessons.score_the_tokens.shifted import shift_log_probs
from kitlib.lessons.score_the_tokens.two_rows import two_rows

__all__ = [
    "Agreement",
    "agreement",
    "check_log_prob",
    "check_positions",
    "check_ranks",
    "log_probs_with",
    "plot_agreement",
    "plot_entropy",
    "shift_log_probs",
    "two_rows",
]
