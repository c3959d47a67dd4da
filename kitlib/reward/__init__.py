"""The reward room: rules, the custom function of the config, and the worker that scores inside the agent loop.

    rules.py         compute_score functions by data_source
    math_answers.py  the rule for mathematics, by meaning
    remote.py        a server's score                              named in reward.custom_reward_function
    sandbox.py       tests for programs, fenced in                 named in reward.custom_reward_function
    load.py          which function the config asks for
    calling.py       a thread and a time limit for it
    reward_model.py  a model that scores conversations
    reward_loop.py   RewardLoopWorker: one trajectory in, score and extra info out, or an error that names the offender

A reward is given once a session, as one number; it lands on the last token of the session's last response.
"""

from __future__ import annotations

from kitlib.reward import math_answers  # noqa: F401  registers its rule
from kitlib.reward.load import load_reward_fn
from kitlib.reward.reward_loop import RewardLoopWorker
from kitlib.reward.rules import RewardError, default_compute_score, register_rule

compute_score = default_compute_score

__all__ = [
    "RewardError",
    "RewardLoopWorker",
    "compute_score",
    "default_compute_score",
    "load_reward_fn",
    "register_rule",
]
