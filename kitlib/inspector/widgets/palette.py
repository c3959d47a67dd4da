"""How a cell is judged and drawn, written down once for the browser, so that it needs no rule of its own.

verl 0.9.1 has no counterpart. The judgement is kitlib.inspector.judgement, glyphs and colours are those of
kitlib.inspector.render.states. The tables of all stages travel together: choosing another stage repaints the grid
without a word to the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kitlib.contract import FIELDS, STAGES
from kitlib.inspector.judgement import Judgement, group_of, judge
from kitlib.inspector.markers import STATUS_STATES
from kitlib.inspector.names import MIN_LENGTH, WORTH_CUTTING
from kitlib.inspector.render.printable import name_of, printable
from kitlib.inspector.render.states import State

NO_STAGE = ""


def palette(stored: Sequence[str], config: Any, partition_id: str) -> dict[str, Any]:
    """Everything static about the columns of a partition, as JSON.

    states:  [{name, glyph, meaning, css}], a cell is a position in it.
    columns: [{name, group, hover, at}]; at: the column of the cell matrix, -1 if no row ever had the field.
    looks:   {stage: [[column, state if present, if absent, if absent on a padding row, is read], ..]}.
    stages:  [[name, title], ..] in pipeline order. status_css: {status: css}. short_names: kitlib.inspector.names.
    """
    judged = {NO_STAGE: judge(None)} | {name: judge(name, config, partition_id) for name in STAGES}
    shown = {name: one.columns(stored) for name, one in judged.items()}
    every = judged[NO_STAGE].columns([field for fields in shown.values() for field in fields])
    position = {field: i for i, field in enumerate(every)}
    return {
        "states": [_state(state) for state in State],
        "columns": [_column(field, list(stored)) for field in every],
        "looks": {
            name: [[position[field], *_look(judged[name], field)] for field in fields] for name, fields in shown.items()
        },
        "stages": [[name, stage.title] for name, stage in STAGES.items()],
        "short_names": {"least": MIN_LENGTH, "worth": WORTH_CUTTING},
        "status_css": {status: state.look.css for status, state in STATUS_STATES.items()},
    }


def _look(judgement: Judgement, field: str) -> list[int]:
    states = list(State)
    said = (judgement.present(field), judgement.absent(field, False), judgement.absent(field, True))
    return [*map(states.index, said), int(field in judgement.reads)]


def _state(state: State) -> dict[str, str]:
    return {"name": state.name, "glyph": state.look.glyph, "meaning": state.look.meaning, "css": state.look.css}


def _column(field: str, stored: list[str]) -> dict[str, Any]:
    spec = FIELDS.get(field)
    hover = f"{spec.meaning}; {spec.dtype} {spec.shape}".strip() if spec else ""
    name = printable(name_of(field))
    return {
        "name": name,
        "group": group_of(field),
        "hover": hover,
        "at": stored.index(field) if field in stored else -1,
    }
