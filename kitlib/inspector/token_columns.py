"""The numbers of one token, as columns: what the fields hold, and what follows from two of them.

verl 0.9.1 has no counterpart.

    rollout  old  ref  values  advantages  rm_scores     as in the queue
    new                                                  update_log_probs: the policy as its update last saw the row
    old/rollout   exp(old - rollout)                     trainer against server, on equal weights: 1, but for rounding
    ratio         exp(new - old), and `clipped`          what the clip range of the loss is about
    share         loss_share                             of the pull of the whole update; all tokens make 100%

`clipped` is a token with an advantage that the loss does not pull: its share is 0. New log-probs and shares are there
with kitlib.record_update only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kitlib.inspector.render.model import Cell, cell, line
from kitlib.inspector.render.states import State
from kitlib.inspector.trajectory import Trajectory

SHORT = {
    "rollout_log_probs": "rollout",
    "old_log_probs": "old",
    "ref_log_prob": "ref",
    "update_log_probs": "new",
    "loss_share": "share",
}
HOVERS = {
    "rollout_log_probs": "log-prob when the server sampled the token",
    "old_log_probs": "log-prob under the policy before the update",
    "ref_log_prob": "log-prob under the reference policy",
    "update_log_probs": "log-prob under the policy as its update last saw the row",
    "loss_share": "share of the update's pull on log-probs; above 0: more likely",
}


@dataclass(frozen=True)
class NumberColumn:
    """One number a response token."""

    name: str
    hover: str
    at: Callable[[int], Cell]
    """The cell of a response position."""


def number_columns(row: Trajectory) -> list[NumberColumn]:
    """The columns that the fields of the row allow, fields first."""
    own = [name for name in row.numbers if name != "loss_share"]
    return [
        *(NumberColumn(SHORT.get(name, name), HOVERS.get(name, ""), _reader(row, name)) for name in own),
        *_derived(row),
    ]


def _reader(row: Trajectory, name: str) -> Callable[[int], Cell]:
    return lambda at: _number(row.number(name, at))


def _derived(row: Trajectory) -> Iterator[NumberColumn]:
    if {"rollout_log_probs", "old_log_probs"} <= row.numbers.keys():
        hover = "exp(old - rollout): trainer against server"
        yield NumberColumn(
            "old/rollout", hover, lambda at: _number(_ratio(row, "old_log_probs", "rollout_log_probs", at))
        )
    if {"update_log_probs", "old_log_probs"} <= row.numbers.keys():
        yield NumberColumn(
            "ratio", "exp(new - old); clipped: the loss does not pull the token", lambda at: _clip(row, at)
        )
    if "loss_share" in row.numbers:
        yield NumberColumn(SHORT["loss_share"], HOVERS["loss_share"], lambda at: _share(row.number("loss_share", at)))


def _ratio(row: Trajectory, above: str, below: str, at: int) -> float | None:
    one, other = row.number(above, at), row.number(below, at)
    return None if one is None or other is None else math.exp(one - other)


def _clip(row: Trajectory, at: int) -> Cell:
    number = _number(_ratio(row, "update_log_probs", "old_log_probs", at))
    return line(number.spans[0], ("clipped", State.WARN)) if is_clipped(row, at) else number


def is_clipped(row: Trajectory, at: int) -> bool:
    """True for a trained token with an advantage and no share of the update."""
    if not {"loss_share", "advantages"} <= row.numbers.keys() or at >= len(row.mask) or not row.mask[at]:
        return False
    return row.number("loss_share", at) == 0 and bool(row.number("advantages", at))


def _number(value: float | None) -> Cell:
    if value is None:
        return cell("missing", State.BAD)
    return cell("nan" if math.isnan(value) else f"{value:.3f}", State.BAD if math.isnan(value) else State.PLAIN)


def _share(value: float | None) -> Cell:
    return _number(value) if value is None or math.isnan(value) else cell(percent(value))


def percent(share: float) -> str:
    """A signed share, "0" if there is none."""
    return f"{100 * share:+.2g}%" if share else "0"
