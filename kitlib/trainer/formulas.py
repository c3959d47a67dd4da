"""Advantages and policy loss of a batch once more, by the reference functions: the last question of check_run.

verl 0.9.1 has no counterpart. A formula gets the run and the handle of its batch and returns what differs, "" if
nothing does, None if there is nothing to compare with: a column is not there, or the update cannot be followed (several
passes, a shuffled order, several steps without kitlib.record_update).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict

from kitlib.algos.advantage import estimator_fields
from kitlib.algos.policy_loss import LossConfig, get_policy_loss_fn
from kitlib.trainer.advantage import estimate, objects, padded_columns
from kitlib.transfer_queue import take_snapshot

Formula = Callable[[Any, Any], "str | None"]
LOGGED = "actor/pg_loss"
ADVANTAGE_TOLERANCE = {"atol": 2e-3, "rtol": 1e-3}
LOSS_TOLERANCE = {"atol": 2e-3, "rtol": 1e-2}  # half precision scores the same token a little differently twice


def reference_formulas(
    tq: Any, config: Any, metrics: Mapping[str, float] | None = None, dp_size: int = 1
) -> dict[str, Formula]:
    """What `check_run` takes as `formulas`.

    tq: a queue, or a recorded moment with values. config: the resolved config of the run. metrics: of the step, for
    the loss that was logged.
    """
    return {
        "advantages": lambda run, batch: advantages_again(tq, config, batch),
        "policy loss": lambda run, batch: loss_again(tq, config, batch, metrics or {}, dp_size),
    }


def advantages_again(tq: Any, config: Any, batch: Any = None) -> str | None:
    """Compute `advantages` by the estimator that the config names and compare with the queue."""
    if batch is None and config.trainer.v1.trainer_mode == "separate_async":
        return None  # rows of several updates lie side by side: an estimator may average over one of them alone
    algorithm = config.algorithm
    named = estimator_fields(algorithm.adv_estimator)
    required = ["advantages", "rm_scores", "response_mask", *(name for name, must in named.items() if must)]
    required = [name for name in required if name != "uid"]  # the key tells it too: a recording keeps tensors alone
    if algorithm.use_kl_in_reward:
        required.append("token_level_rewards")
    keys, data = _fetch(tq, batch, required, optional=[*named])
    if data is None:
        return None
    columns = padded_columns(data)
    columns["token_level_scores"] = columns["rm_scores"]
    columns.setdefault("token_level_rewards", columns["rm_scores"])
    stored = columns.pop("advantages")  # [num_rows, max R]
    uids = objects(data, "uid") or [key.rsplit("_", 2)[0] for key in keys]
    expected, _ = estimate(algorithm, keys, columns, uids, objects(data, "extra_fields"))
    wrong = ~torch.isclose(stored, expected.to(stored.dtype), **ADVANTAGE_TOLERANCE, equal_nan=True)
    wrong &= columns["response_mask"].bool()  # what stands on a masked token has no meaning
    if not wrong.any():
        return ""
    row, token = (int(where[0]) for where in wrong.nonzero(as_tuple=True))
    return (
        f"token {token} of {keys[row]} has {stored[row, token]:.4f}, and {algorithm.adv_estimator} makes "
        f"{expected[row, token]:.4f} of its rewards ({int(wrong.any(dim=1).sum())} of {len(keys)} rows differ)"
    )


def loss_again(tq: Any, config: Any, batch: Any, metrics: Mapping[str, float], dp_size: int = 1) -> str | None:
    """Compute the policy loss that the config names and compare with actor/pg_loss of the step."""
    actor = config.actor_rollout_ref.actor
    if LOGGED not in metrics or actor.ppo_epochs != 1 or config.algorithm.use_pf_ppo:
        return None
    required = ["response_mask", "loss_mask", "old_log_probs", "advantages"]
    keys, data = _fetch(tq, batch, required, optional=["rollout_is_weights", "update_log_probs"])
    if data is None:
        return None
    columns = padded_columns(data)
    mini_size = actor.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n
    num_steps = len(keys) // mini_size
    if len(keys) % mini_size or (num_steps > 1 and (batch is None or actor.shuffle)):
        return None
    if "update_log_probs" not in columns:  # the policy that was updated is the one that made old_log_probs
        if num_steps > 1 or config.algorithm.rollout_correction.bypass_mode:
            return None
        columns["update_log_probs"] = columns["old_log_probs"]
    losses = [_loss(actor, columns, rows, mini_size) for rows in _mini_batches(len(keys), mini_size, dp_size)]
    expected = sum(losses) / len(losses)
    if torch.isclose(torch.tensor(metrics[LOGGED]), torch.tensor(expected), **LOSS_TOLERANCE, equal_nan=True):
        return ""
    return f"{LOGGED} was {metrics[LOGGED]:.5f}, and {actor.policy_loss.loss_mode} makes {expected:.5f} of this batch"


def _loss(actor: Any, columns: Mapping[str, torch.Tensor], rows: torch.Tensor, mini_size: int) -> float:
    """The loss of one optimizer step, on the rows of a mini-batch."""
    taken = {name: column[rows] for name, column in columns.items()}
    info = {
        "dp_size": 1,
        "batch_num_tokens": int(taken["loss_mask"].sum()),
        "global_batch_size": mini_size,
        "loss_scale_factor": actor.loss_scale_factor,
    }
    loss, _ = get_policy_loss_fn(actor.policy_loss.loss_mode)(
        old_log_prob=taken["old_log_probs"],
        log_prob=taken["update_log_probs"],
        advantages=taken["advantages"],
        response_mask=taken["response_mask"].bool(),
        loss_agg_mode=actor.loss_agg_mode,
        config=LossConfig.from_actor(actor, **info),
        rollout_is_weights=taken.get("rollout_is_weights"),
    )
    return float(loss)


def _mini_batches(num_rows: int, mini_size: int, dp_size: int) -> list[torch.Tensor]:
    """Row numbers of each optimizer step: a slice of every rank's share."""
    by_rank = torch.arange(num_rows).reshape(dp_size, -1)
    return [part.flatten() for part in by_rank.split(mini_size // dp_size, dim=1)]


def _fetch(
    tq: Any, batch: Any, required: Sequence[str], optional: Sequence[str] = ()
) -> tuple[list[str], TensorDict | None]:
    """Keys and columns of the batch, else of all rows with advantages; None if a required column is not whole.

    optional: columns that come along if every row has them.
    """
    if not hasattr(tq, "kv_batch_get"):
        return [], None
    partition_id = (batch.partition_id if batch is not None else None) or "train"
    partition = take_snapshot(tq).partitions.get(partition_id)
    if partition is None:
        return [], None
    if batch is not None:
        keys = [key for key in batch.keys if key in partition]
    else:
        keys = [key for key in partition.keys if partition.has(key, "advantages")]
    whole = [name for name in dict.fromkeys([*required, *optional]) if all(partition.has(key, name) for key in keys)]
    if not keys or not set(required) <= set(whole):
        return keys, None
    data = tq.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=whole)
    return keys, data if all(name in data for name in required) else None
