"""Advantages: how much better a token was than expected. The registry, GRPO, and the rule for sessions with several
outputs.

verl 0.9.1: trainer/ppo/core_algos.py, register_adv_est, get_adv_estimator_fn, compute_grpo_outcome_advantage,
compute_grpo_vectorized_outcome_advantage; trainer/ppo/ray_trainer.py, compute_advantage; trainer/ppo/v1/utils.py,
compute_advantage_for_multi_trajectories.

An estimator is a function of padded tensors [num_rows, j1] (j1 = longest response of the batch, zeros beyond the end
of a row) that returns (advantages, returns), both [num_rows, j1]. It is told what it needs by the names of its
parameters:

    token_level_rewards, response_mask, values, ...   the field of that name
    index                                             the field `uid`: the group of each row
    gamma, lam, norm_adv_by_std_in_grpo               the key of that name under `algorithm`
    config                                            the whole `algorithm` section
    data                                              all columns, for an estimator whose config names the ones it reads

Add your own with @register_adv_est("name") and set algorithm.adv_estimator=name.

Differs: verl feeds estimators by a list of names in the trainer, so that some (remax, gdpo, the two optimal token
baselines) never get their inputs in its V1 trainer; here the signature decides, and a field that the batch lacks is
an error that names it. `grpo_vectorized` is the same function as `grpo`: the two differ in verl only in speed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kitlib.algos.errors import AlgoError
from kitlib.algos.groups import Groups

AdvantageFn = Callable[..., tuple[Tensor, Tensor]]

ADV_ESTIMATOR_REGISTRY: dict[str, AdvantageFn] = {}


def register_adv_est(name: str) -> Callable[[AdvantageFn], AdvantageFn]:
    """Decorator: make an estimator known as algorithm.adv_estimator=`name`. A taken name is an AlgoError."""

    def register(fn: AdvantageFn) -> AdvantageFn:
        known = ADV_ESTIMATOR_REGISTRY.get(name)
        # A notebook cell that is run twice defines the same function again: that replaces, it does not clash.
        if known is not None and (known.__module__, known.__qualname__) != (fn.__module__, fn.__qualname__):
            raise AlgoError(
                f"advantage estimator {name!r} is already {known.__module__}.{known.__qualname__}: choose another name"
            )
        ADV_ESTIMATOR_REGISTRY[name] = fn
        return fn

    return register


def get_adv_estimator_fn(name: str) -> AdvantageFn:
    """The estimator registered under `name`; AlgoError lists the known ones."""
    if name not in ADV_ESTIMATOR_REGISTRY:
        raise AlgoError(
            f"algorithm.adv_estimator={name!r} is unknown; known are {', '.join(sorted(ADV_ESTIMATOR_REGISTRY))}"
        )
    return ADV_ESTIMATOR_REGISTRY[name]


@register_adv_est("grpo_vectorized")
@register_adv_est("grpo")
@torch.no_grad()
def compute_grpo_outcome_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Sequence[Any] | Tensor,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
) -> tuple[Tensor, Tensor]:
    """GRPO with outcome rewards (DeepSeekMath, arXiv:2402.03300).

        A_it = m_it * (R_i - mean_g R) / (std_g R + epsilon)        R_i = sum_t r_it, g the group of row i

    norm_adv_by_std_in_grpo=False leaves the division out (Dr. GRPO, arXiv:2503.20783). The standard deviation is the
    unbiased one. A group of one row keeps its raw reward: (R - 0) / (1 + epsilon). R_i sums all tokens, so a reward
    that sits on a masked token still moves the group.

    Shapes: token_level_rewards, response_mask and both results [num_rows, j1]; index one group name a row.
    """
    scores = token_level_rewards.sum(dim=-1)  # [num_rows]
    groups = Groups(index, len(scores), scores.device)
    centred = scores - groups.baseline_mean(scores)
    if norm_adv_by_std_in_grpo:
        centred = centred / (groups.std(scores) + epsilon)
    advantages = centred.to(scores.dtype).unsqueeze(-1) * response_mask
    return advantages, advantages


def estimator_parameters(name: str) -> dict[str, bool]:
    """The parameters of an estimator: name -> whether it must be given (no default)."""
    parameters = inspect.signature(get_adv_estimator_fn(name)).parameters.values()
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return {p.name: p.default is inspect.Parameter.empty for p in named}


SETTINGS = ("gamma", "lam", "norm_adv_by_std_in_grpo", "config", "data")
"""Parameters that are no fields; `data` is all columns."""
DERIVED = ("token_level_rewards", "token_level_scores")
"""Columns that the advantage stage makes of rm_scores before it calls an estimator."""


def estimator_fields(name: str) -> dict[str, bool]:
    """The fields that an estimator names as parameters: name -> whether it must be given."""
    parameters = estimator_parameters(name).items()
    named = {"uid" if p == "index" else p: required for p, required in parameters if p not in SETTINGS}
    return {"rm_scores" if field in DERIVED else field: required for field, required in named.items()}


def required_fields(name: str) -> set[str]:
    """The fields of the queue that an estimator cannot do without."""
    return {field for field, required in estimator_fields(name).items() if required}


def compute_advantage(
    data: Mapping[str, Any],
    adv_estimator: str,
    gamma: float = 1.0,
    lam: float = 1.0,
    norm_adv_by_std_in_grpo: bool = True,
    config: Any = None,
) -> tuple[Tensor, Tensor]:
    """Call an estimator with the columns that it names as parameters.

    `data` maps field names to padded tensors [num_rows, j1] or lists with one object a row (`uid`). Returns
    (advantages, returns). Raises AlgoError if a field that the estimator cannot do without is not in `data`.
    """
    settings = {"gamma": gamma, "lam": lam, "norm_adv_by_std_in_grpo": norm_adv_by_std_in_grpo, "config": config}
    settings["data"] = data
    arguments = {}
    for parameter, required in estimator_parameters(adv_estimator).items():
        field = "uid" if parameter == "index" else parameter
        if parameter in settings:
            arguments[parameter] = settings[parameter]
        elif field in data:
            arguments[parameter] = data[field]
        elif required:
            raise AlgoError(
                f"algorithm.adv_estimator={adv_estimator} needs the field {field!r}, which this batch does not have; "
                f"it has {', '.join(data)}"
            )
    return get_adv_estimator_fn(adv_estimator)(**arguments)


def compute_advantage_for_multi_trajectories(
    data: Mapping[str, Any],
    batch_keys: Sequence[str],
    adv_estimator: str,
    gamma: float = 1.0,
    lam: float = 1.0,
    norm_adv_by_std_in_grpo: bool = True,
    config: Any = None,
) -> tuple[Tensor, Tensor]:
    """`compute_advantage` for batches in which a session may have several outputs, that is several rows.

    `batch_keys` are the keys `{uid}_{session_id}_{index}` of the rows. For "grpo", only the last output of a session
    (its highest index) enters the statistics of the group, once; its advantage is then given to every row of the
    session:

        key      reward   enters     advantage
        a_0_0    1        no         that of a_0_1
        a_0_1    1        yes        (1 - .5) / .7071
        a_1_0    0        yes        (0 - .5) / .7071

    Every other estimator sees all rows as they are. The advantage of a session is read at the first unmasked
    token of its last output: if that output has no unmasked token, all rows of the session get zero.
    """
    settings = {"gamma": gamma, "lam": lam, "norm_adv_by_std_in_grpo": norm_adv_by_std_in_grpo, "config": config}
    if adv_estimator != "grpo":
        return compute_advantage(data, adv_estimator, **settings)

    final_rows, session_of_row = final_outputs(batch_keys)
    final_data = {name: _take_rows(column, final_rows) for name, column in data.items()}
    advantages, _ = compute_advantage(final_data, adv_estimator, **settings)
    first_token = final_data["response_mask"].long().argmax(dim=1)  # [num_sessions]
    session_advantage = advantages[torch.arange(len(final_rows)), first_token]
    advantages = session_advantage[session_of_row].unsqueeze(-1) * data["response_mask"]
    return advantages, advantages


def final_outputs(batch_keys: Sequence[str]) -> tuple[list[int], list[int]]:
    """For keys `{uid}_{session_id}_{index}`: (row of the last output of each session, session number of each row)."""
    number: dict[str, int] = {}
    final: list[tuple[int, int]] = []  # by session: (index, row)
    session_of_row = []
    for row, key in enumerate(batch_keys):
        session, _, index = key.rpartition("_")
        if not session or not index.isdecimal():
            raise AlgoError(f"row {row} has the key {key!r}: expected {{uid}}_{{session_id}}_{{index}}")
        session_number = number.setdefault(session, len(number))
        session_of_row.append(session_number)
        if session_number == len(final):
            final.append((int(index), row))
        elif final[session_number][0] < int(index):
            final[session_number] = (int(index), row)
    return [row for _, row in final], session_of_row


def _take_rows(column: Any, rows: list[int]) -> Any:
    return column[rows] if isinstance(column, Tensor) else [column[row] for row in rows]
