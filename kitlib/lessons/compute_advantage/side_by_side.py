"""The same answers under several estimators: as a table, as a heat map, and what one success is worth.

verl 0.9.1 has no counterpart; the numbers are those of kitlib.algos, which are verl's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kitlib.algos import compute_advantage
from kitlib.algos.advantage import required_fields
from kitlib.inspector import View
from kitlib.inspector.render.model import Cell, Column, Table, ViewModel, cell, line
from kitlib.inspector.render.states import State
from kitlib.inspector.render.wording import count, joined
from kitlib.lessons.compute_advantage.toys import toy_columns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b4699b", "#444444")


class SideBySide(View):
    """One line an estimator, one column an answer. `advantages`: {estimator: [num_rows, j1]}, only of those that ran.

    A number stands for all tokens of an answer that the model wrote; `a..b` are its first and its last one, where
    they differ.
    """

    def __init__(self, columns: Mapping[str, Any], names: Sequence[str], settings: Mapping[str, Any]) -> None:
        self.columns = columns
        lacking = {name: sorted(_fields(name) - set(columns)) for name in names}
        self.advantages: dict[str, Tensor] = {
            name: compute_advantage(columns, name, **settings)[0] for name in names if not lacking[name]
        }
        rows = tuple(self._row(name, lacking[name]) for name in names)
        heads = [Column(f"{r:g}", uid, "right") for r, uid in zip(self.rewards(), columns["uid"], strict=True)]
        head = line((f"advantages of {count(len(heads), 'answer')}", State.STRONG), "a column's name is its reward")
        super().__init__(ViewModel(head, tables=(Table((Column("estimator"), *heads), rows, row_noun="estimators"),)))

    def rewards(self) -> list[float]:
        """The reward of each answer."""
        return self.columns["token_level_rewards"].sum(dim=1).tolist()

    def _row(self, name: str, lacking: Sequence[str]) -> tuple[Cell, ...]:
        if lacking:
            blank = [cell("-", State.DIM)] * len(self.columns["uid"])
            return (line((name, State.STRONG), (f"needs {joined(lacking)}", State.DIM)), *blank)
        pairs = zip(self.advantages[name], self.columns["response_mask"].bool(), strict=True)
        return (cell(name, State.STRONG), *(_numbers(row[mask].tolist()) for row, mask in pairs))


def _fields(name: str) -> set[str]:
    return {"token_level_rewards" if field == "rm_scores" else field for field in required_fields(name)}


def _numbers(values: list[float]) -> Cell:
    if not values:
        return cell("-", State.DIM)
    first, last = values[0] + 0.0, values[-1] + 0.0
    if math.isnan(first):
        return cell("nan", State.BAD)
    equal = all(abs(value - first) < 5e-3 for value in values)
    text = f"{first:.2f}" if equal else f"{round(first, 2):g}..{round(last, 2):g}"
    state = State.HIGH if first > 5e-3 else State.LOW if first < -5e-3 else State.DIM
    return cell(text, state)


def side_by_side(columns: Mapping[str, Any], *names: str, **settings: Any) -> SideBySide:
    """What each named estimator makes of the same columns; one that lacks a field says which.

    settings: gamma, lam, norm_adv_by_std_in_grpo, config of kitlib.algos.compute_advantage.
    """
    return SideBySide(columns, names, settings)


def heat_map(compared: SideBySide, limit: float = 2.5) -> Figure:
    """The advantage at the first token of each answer as a colour: one row an estimator, one column an answer.

    Answers are sorted by group and, within a group, by reward. Colours saturate at +-limit.
    """
    from matplotlib import pyplot as plt

    uids, rewards = compared.columns["uid"], compared.rewards()
    order = sorted(range(len(uids)), key=lambda row: (uids.index(uids[row]), rewards[row]))
    first = compared.columns["response_mask"].long().argmax(dim=1, keepdim=True)
    grid = torch.stack([advantages.gather(1, first)[order, 0] for advantages in compared.advantages.values()])
    figure, axes = plt.subplots(figsize=(9, 0.9 + 0.32 * len(grid)), layout="constrained")
    image = axes.imshow(grid.numpy(), cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto")
    axes.set_yticks(range(len(grid)), list(compared.advantages))
    starts = 0
    for uid, members in groupby(uids[row] for row in order):
        size = len(list(members))
        axes.text(starts + size / 2 - 0.5, -0.7, uid[:4], ha="center", fontsize=9)
        starts += size
        axes.axvline(starts - 0.5, color="black", linewidth=1)
    axes.set_xticks(range(len(order)), [f"{rewards[row]:g}" for row in order], fontsize=8)
    axes.set_xlabel("reward of the answer, group by group")
    figure.colorbar(image, label="advantage")
    plt.close(figure)
    return figure


def plot_success(estimators: Mapping[str, Mapping[str, Any]], n: int = 8) -> Figure:
    """The advantage of a success (solid) and of a failure (dashed), by how many of n answers succeed.

    estimators: {label: arguments of kitlib.algos.compute_advantage}.
    """
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for (label, settings), colour in zip(estimators.items(), COLOURS, strict=False):
        made = [_success_and_failure(wins, n, settings) for wins in range(1, n)]
        axes.plot(range(1, n), [won for won, _ in made], marker="o", markersize=4, color=colour, label=label)
        axes.plot(range(1, n), [lost for _, lost in made], linestyle="--", color=colour)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set(xlabel=f"successes among {n} answers", ylabel="advantage")
    axes.grid(alpha=0.3)
    axes.legend()
    plt.close(figure)
    return figure


def _success_and_failure(wins: int, n: int, settings: Mapping[str, Any]) -> tuple[float, float]:
    advantages, _ = compute_advantage(toy_columns([1.0] * wins + [0.0] * (n - wins)), **settings)
    return advantages[0, 0].item(), advantages[-1, 0].item()
