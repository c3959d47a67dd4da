"""The check of an estimator that the reader has written: reward minus the median of the group.

It is called as the advantage stage would call it, on toy rows whose right numbers are known. An estimator that raises
is told what it raised: a notebook runs on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from kitlib.algos import compute_advantage
from kitlib.algos.advantage import ADV_ESTIMATOR_REGISTRY
from kitlib.inspector.render.wording import count
from kitlib.lessons.answers import Answer, mistakes, open_answer, right, unanswered
from kitlib.lessons.compute_advantage.toys import toy_columns

REWARDS, UIDS = [0.0, 0.1, 1.0, 0.5, 0.6, 0.8], ["a", "b", "a", "b", "a", "b"]
MASKS = [[1, 1], [1, 0, 1], [1, 1], [1], [1], [1, 1]]


def check_median_baseline(name: str, columns: dict[str, Any] | None = None) -> Answer:
    """Is the estimator registered under `name` the reward minus the median reward of the group, on unmasked tokens?

    columns: those of a real batch, on which it must run, too.
    """
    if name not in ADV_ESTIMATOR_REGISTRY:
        return mistakes([f"no estimator is registered as {name!r}: is the line @register_adv_est({name!r}) there?"])
    toys = toy_columns(REWARDS, UIDS, MASKS)
    for data in (toys, *([columns] if columns is not None else [])):
        made = _call(name, data)
        if isinstance(made, Answer):
            return made
        wrong = list(_wrong(made.float(), data))
        if wrong:
            return mistakes(wrong[:1])
    real = f" and on the {count(len(columns['uid']), 'row')} of the batch" if columns is not None else ""
    return right(f"right on the {count(len(REWARDS), 'toy row')}{real}", f"algorithm.adv_estimator={name} would use it")


def _call(name: str, data: dict[str, Any]) -> Tensor | Answer:
    """The advantages that it makes of a copy: one that writes into its columns must not spoil the next try."""
    copies = {field: column.clone() if isinstance(column, Tensor) else list(column) for field, column in data.items()}
    try:
        made: Any = compute_advantage(copies, name)
    except Exception as error:  # noqa: BLE001  whatever a reader's function raises is told, not thrown
        if "ellipsis" in str(error):
            return open_answer()
        return mistakes([f"it raises {type(error).__name__}: {error}"])
    if made is ... or (isinstance(made, tuple) and unanswered(*made)):
        return open_answer()
    if isinstance(made, Tensor):
        return mistakes(["it returns one tensor: return two, advantages and returns"])
    parts = made if isinstance(made, tuple | list) and len(made) == 2 else (made, made)
    strange = [type(part).__name__ for part in parts if not isinstance(part, Tensor)]
    if strange:
        return mistakes([f"it returns {strange[0]}: two tensors [num_rows, j1] are expected"])
    return parts[0]


def _wrong(made: Tensor, data: dict[str, Any]) -> Iterator[str]:
    mask, uids = data["response_mask"], data["uid"]
    rewards = data["token_level_rewards"].sum(dim=1)
    if made.shape != mask.shape:
        yield f"its shape is {list(made.shape)}, expected {list(mask.shape)}: one number a token, not one a row"
        return
    if torch.allclose(made, _centred(rewards, uids, lower_median) * mask, atol=1e-5):
        return
    spread = torch.ones_like(mask)
    named = {
        "tokens under mask 0 must get 0: multiply by response_mask": _centred(rewards, uids, lower_median) * spread,
        "your median is over all rows; take the rows of one uid": (rewards - rewards.median())[:, None] * mask,
        "this is the mean of the group, not its median": _centred(rewards, uids, torch.mean) * mask,
        "no baseline is subtracted": rewards[:, None] * mask,
        "these are token rewards minus the median: sum the rewards of a row first": (
            (data["token_level_rewards"] + _centred(torch.zeros_like(rewards), uids, lower_median, rewards)) * mask
        ),
        "the sign is turned: reward minus median": -_centred(rewards, uids, lower_median) * mask,
    }
    yield next(
        (said for said, numbers in named.items() if torch.allclose(made, numbers, atol=1e-5)),
        "not the reward minus the median of its group: print it for toy_columns([0, 1, 1]) and compare by hand",
    )


def lower_median(values: Tensor) -> Tensor:
    """torch.median: of two middle values the lower one."""
    return values.median()


def _centred(values: Tensor, uids: list[str], baseline: Any, source: Tensor | None = None) -> Tensor:
    """values minus `baseline` of the group of each row in `source` (default values), [num_rows, 1]."""
    source = values if source is None else source
    named = {uid: baseline(source[[row for row, one in enumerate(uids) if one == uid]]) for uid in set(uids)}
    return (values - torch.stack([named[uid] for uid in uids]))[:, None]
