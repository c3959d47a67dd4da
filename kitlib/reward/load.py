"""Which reward function the config asks for.

verl 0.9.1: trainer/ppo/reward.py, get_custom_reward_fn and load_reward_manager. Left out: other reward managers than
`naive`. Functions that come with kitlib are named the same way:

    reward.custom_reward_function.path=pkg://kitlib.reward.remote  .name=remote_score  .reward_kwargs.url=http://...
    reward.custom_reward_function.path=pkg://kitlib.reward.sandbox .name=score_code
"""

from __future__ import annotations

from functools import partial
from typing import Any

from kitlib.reward.rules import RewardError, RewardFn, default_compute_score
from kitlib.user_code import load_user_object

_KEY = "reward.custom_reward_function"


def load_reward_fn(config: Any) -> RewardFn:
    """The function of `reward.custom_reward_function`, or the rules by data_source if its `path` is not set.

    Reads reward.custom_reward_function.{path, name, reward_kwargs}; reward_kwargs are passed on every call. The
    function may be a coroutine function. Raises UserCodeError for a file or name that is not there, RewardError for a
    name that is not callable.
    """
    custom = config.reward.custom_reward_function
    if not custom.path:
        return default_compute_score
    function = load_user_object(custom.path, custom.name, f"{_KEY}.path")
    if not callable(function):
        raise RewardError(f"{_KEY}.name={custom.name}: {function!r} in {custom.path} is not a function")
    kwargs = dict(custom.get("reward_kwargs") or {})
    return partial(function, **kwargs) if kwargs else function
