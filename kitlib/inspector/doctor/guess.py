"""Where a run stands, guessed from its queue alone: for a look at a run whose stage nobody tells.

verl 0.9.1: a marker waits until its group is sampled; the rows of a sampled group have no marker any more, and the
fields on them say how far the step has come. Whole groups without a marker are taken for the running batch; rows of a
broken group without a marker are nobody's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kitlib.contract import needs
from kitlib.inspector.doctor.handle import Handle
from kitlib.inspector.doctor.scene import Row, Scene, grouped, keys_of, sessions_of
from kitlib.inspector.doctor.situation import Situation

BATCH_STAGES = (
    "balance_batch",
    "compute_old_log_prob",
    "compute_ref_log_prob",
    "compute_values",
    "compute_advantage",
    "update_actor",
)


def standing(s: Situation) -> Iterator[Situation]:
    """The situations that a stageless one may be in: a running batch, a sampler that waits, a validation."""
    train = s.scenes.get("train")
    batch = _running_batch(train) if train is not None else []
    if train is not None and batch:
        keys = keys_of([*batch, *(row for row in train.rows.values() if row.is_padding)])
        yield replace(s, stage=_stage_of(train, batch, s), batch=Handle(keys, "train"), is_guessed=True)
    if train is not None and (train.markers or not batch):
        yield replace(s, stage="sample", held=frozenset(keys_of(batch)), is_guessed=True)
    if (val := s.scenes.get("val")) is not None and val.markers:
        yield replace(s, stage="validate", held=frozenset(keys_of(batch)), is_guessed=True)


def _running_batch(scene: Scene) -> list[Row]:
    """Rows of whole groups without a marker."""
    known = {*scene.markers, *scene.ghosts}  # rows of a ghost were written after their step had been cleared
    loose = {uid: rows for uid, rows in scene.rows_of.items() if uid not in known and "_" not in uid}
    sizes = [len(sessions_of(rows)) for rows in scene.rows_of.values()]
    usual = max(sizes, key=sizes.count, default=0)
    whole = {uid for uid, rows in loose.items() if len(sessions_of(rows)) >= usual}
    trained = {row.uid for rows in loose.values() for row in scene.having(rows, "old_log_probs")}
    if not scene.markers and len(whole) > len(loose) // 2:
        return [row for rows in loose.values() for row in rows]  # a short group in a batch is still of the batch
    return [row for uid in loose if uid in whole | trained for row in loose[uid]]


def _stage_of(scene: Scene, rows: list[Row], s: Situation) -> str:
    """The first stage whose own fields are not on most of the rows yet."""
    for name in BATCH_STAGES:
        stage = needs(name, s.choices.config)
        marks = [any(scene.has(rows, field)) for field in stage.writes if field != "response_mask"]
        if marks and not all(marks) and stage.runs:
            return name
    return BATCH_STAGES[-1] if grouped(rows) else "sample"
