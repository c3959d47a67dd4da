"""Judge presence by the contract: which fields the next stage needs, which it can do without, which are not due.

Reads kitlib.contract and nothing else; the config decides through the contract's conditions. Without a stage nothing
is judged: a field is there or it is not.

    absent field   read by the stage                               MISSING
                   taken by the stage if every row has it          OPTIONAL written by a stage before this one
                   LATE      (never on padding rows: they are made by hand) written by this stage or a later one
                   NOT_DUE anything else                                   ABSENT
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kitlib.contract import FIELDS, GROUPS, STAGES, Needs, needs
from kitlib.errors import KitError
from kitlib.inspector.render.states import State

OTHER = "not in the contract"
_WITHOUT_TRAINING = ("submit_batch_to_rollout", "generate_sequences", "validate")  # the life of a row in `val`


class UnknownStageError(KitError):
    """A stage that the contract does not know."""


def check_stage(name: str) -> None:
    """Raises UnknownStageError with near names."""
    if name not in STAGES:
        near = difflib.get_close_matches(name.lstrip("_"), STAGES, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}?" if near else f"the stages are {', '.join(STAGES)}"
        raise UnknownStageError(f"no stage {name!r} in the contract; {hint}")


@dataclass(frozen=True)
class Judgement:
    """The needs of the next stage under a config.

    late, due: fields that stages before it, and this stage or later ones, write under this config.
    off:       (field, condition) of trainer fields that no stage writes under this config.
    config:    as it was given.
    """

    stage: str | None
    needs: Needs | None
    late: frozenset[str]
    due: frozenset[str]
    off: tuple[tuple[str, str], ...]
    config: Any = None

    @property
    def reads(self) -> tuple[str, ...]:
        return self.needs.reads if self.needs else ()

    @property
    def optional(self) -> tuple[str, ...]:
        return self.needs.optional if self.needs else ()

    def present(self, field: str) -> State:
        return State.NEEDED if field in self.reads or field in self.optional else State.PRESENT

    def absent(self, field: str, is_padding: bool) -> State:
        if field in self.reads:
            return State.MISSING
        if field in self.optional:
            return State.OPTIONAL
        if field in self.late and not is_padding:
            return State.LATE
        return State.NOT_DUE if field in self.due else State.ABSENT

    def columns(self, stored: Iterable[str]) -> list[str]:
        """Fields worth a column, in contract order: those that some row has, those that are needed, those still to
        come."""
        wanted = {*stored, *self.reads, *self.optional, *self.due, *self.late}
        return sorted(wanted, key=_contract_order)


def judge(stage: str | None, config: Any = None, partition_id: str = "train") -> Judgement:
    """Resolve the contract for the next stage. In `val`, only the rollout and validation stages count."""
    if stage is None:
        return Judgement(None, None, frozenset(), frozenset(), ())
    check_stage(stage)
    path = [name for name in STAGES if partition_id != "val" or name in {*_WITHOUT_TRAINING, stage}]
    here = path.index(stage)
    resolved = [needs(name, config) for name in path]
    late = {field for one in resolved[:here] if one.runs for field in one.writes}
    due = {field for one in resolved[here:] if one.runs for field in one.writes} - late
    off = tuple((name, _condition(name)) for name in _switchable(path) if name not in late | due)
    return Judgement(stage, resolved[here], frozenset(late), frozenset(due), off, config)


def group_of(field: str) -> str:
    """Where a field is first written: the contract's group."""
    return FIELDS[field].group if field in FIELDS else OTHER


def why_needed(stage: str, field: str) -> str:
    """The config condition under which a stage reads a field, "" when it always does."""
    texts = [need.when.text for need in STAGES[stage].reads if need.field == field and need.when.text != "always"]
    return " or ".join(texts)


def short_condition(text: str) -> str:
    """A condition with the last word of each config key only: `use_kl_loss or use_kl_in_reward`, `critic.enable`."""
    return re.sub(r"(?:\w+\.)*?((?:\w+\.enabled?\b)|(?<=\.)\w+)(?![\w.])", r"\1", text)


def writers(field: str) -> list[str]:
    """Names of the stages that write a field, in pipeline order."""
    return [name for name, stage in STAGES.items() if any(need.field == field for need in stage.writes)]


def _contract_order(field: str) -> tuple[int, int, str]:
    names = list(FIELDS)
    group = group_of(field)
    return (
        GROUPS.index(group) if group in GROUPS else len(GROUPS),
        names.index(field) if field in FIELDS else 0,
        field,
    )


def _switchable(path: list[str]) -> list[str]:
    """Trainer fields: written by a stage after the rollout, so that a config decides whether they will exist."""
    first = ("submit_batch_to_rollout", "generate_sequences")
    return [name for name in FIELDS if (by := writers(name)) and not set(by) & set(first) and set(by) <= set(path)]


def _condition(field: str) -> str:
    """Why a field may never be written: the condition of its need, or of the stage that writes it."""
    texts = []
    for name in writers(field):
        stage = STAGES[name]
        whens = [need.when.text for need in stage.writes if need.field == field]
        texts += [text for text in [stage.runs_when.text, *whens] if text != "always"]
    return " or ".join(dict.fromkeys(texts))
