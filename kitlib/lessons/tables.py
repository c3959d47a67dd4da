"""The contract as tables for readers, printed from `kitlib.contract` and from nothing else.

three_questions   what a stage is for, which fields it takes and gives, which settings change it
crosswalk         which method it is here, who calls it, where verl 0.9.1 has it
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kitlib.contract import STAGES, Stage, needs
from kitlib.inspector import View
from kitlib.inspector.render.model import Cell, Column, Table, ViewModel, cell, line
from kitlib.inspector.render.states import State
from kitlib.inspector.render.wording import count


def three_questions(config: Any = None, stages: Sequence[str] | None = None) -> View:
    """One line a stage that runs under `config` (None: verl's defaults); `stages` restricts it to these."""
    chosen = running_stages(config, stages)
    columns = (
        Column("stage"),
        Column("what it is for", flow=True),
        Column("takes", flow=True),
        Column("gives", flow=True),
        Column("settings that change it", flow=True),
    )
    title = "what the stage is for" if len(chosen) == 1 else f"what each of {count(len(chosen), 'stage')} is for"
    return _view(title, columns, (_answers(s, config) for s in chosen))


def crosswalk(config: Any = None, stages: Sequence[str] | None = None) -> View:
    """One line a stage: its method here, its caller, its file and symbol in verl 0.9.1."""
    chosen = running_stages(config, stages)
    columns = (Column("stage"), Column("method"), Column("called by", flow=True), Column("verl 0.9.1", flow=True))
    rows = ((cell(s.title, State.STRONG), cell(s.name), cell(s.called_by), cell(s.verl)) for s in chosen)
    return _view("from kitlib to verl", columns, rows)


def running_stages(config: Any = None, stages: Sequence[str] | None = None) -> list[Stage]:
    """The stages that run under this config, in the order of the contract."""
    return [s for s in STAGES.values() if needs(s.name, config).runs and (stages is None or s.name in stages)]


def _answers(stage: Stage, config: Any) -> tuple[Cell, ...]:
    fields = needs(stage.name, config)
    optional = [f"({name})" for name in fields.optional]
    return (
        cell(stage.title, State.STRONG),
        cell(stage.meaning),
        cell(_data([*fields.reads, *optional], stage.tags_read)),
        cell(_data(fields.writes, stage.tags_written)),
        cell(_list(stage.switches)),
    )


def _data(fields: Sequence[str], tags: Sequence[str]) -> str:
    """Fields, then tags: `input_ids, responses; tags seq_len`."""
    said = [_list(fields)] if fields or not tags else []
    return "; ".join([*said, f"tags {_list(tags)}"] if tags else said)


def _list(names: Iterable[str]) -> str:
    return ", ".join(names) or "-"


def _view(title: str, columns: tuple[Column, ...], rows: Iterable[tuple[Cell, ...]]) -> View:
    return View(ViewModel(line((title, State.STRONG)), tables=(Table(columns, tuple(rows), row_noun="stages"),)))
