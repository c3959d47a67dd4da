"""Joins: rows and markers that belong together by their uid, and where they do not meet.

verl 0.9.1: the sampler joins rows to markers by the key's uid within one partition, the advantage stage groups by the
`uid` column. TransferQueue 0.1.11 lets one key live in two partitions and never compares column and key.
"""

from __future__ import annotations

from collections.abc import Iterator

from kitlib.inspector.doctor.finding import Finding, clear_call, few, some, verb
from kitlib.inspector.doctor.scene import IN_FLIGHT, Row, Scene, grouped, keys_of, whole
from kitlib.inspector.doctor.situation import Situation

DUE = ("submit_batch_to_rollout", "generate_sequences", "sample", "validate", "resume")  # no batch is in hand then


def orphans(s: Situation) -> Iterator[Finding]:
    """orphan_rows: rows without a marker that no batch holds; nobody will sample or clear them."""
    for scene in s.scenes.values():
        rows = orphan_rows(s, scene)
        if not rows:
            continue
        steps = sorted({step for row in rows if (step := whole(row.tag.get("global_steps"))) is not None})
        uids = list(grouped(rows))
        when = f" They were written for step {few([str(step) for step in steps])}" if steps else ""
        now = f", the trainer is at {s.global_steps}." if when and s.global_steps is not None else "." if when else ""
        yield Finding(
            "orphan_rows",
            "warning",
            f"{some(len(rows), 'row')} of {few(uids)} in {scene.name} {verb(len(rows), 'has', 'have')} no prompt "
            f"marker and {verb(len(rows), 'is', 'are')} in no batch: nobody will sample or clear "
            f"{verb(len(rows), 'it', 'them')}.{when}{now}",
            f"If no step works on them, remove them: {clear_call(keys_of(rows), scene.name)}.",
            scene.name,
            keys_of(rows),
            numbers={
                "rows": len(rows),
                "rows_step": steps[0] if steps else None,
                "global_steps": s.global_steps,
                "groups": len(uids),
            },
        )


def orphan_rows(s: Situation, scene: Scene) -> list[Row]:
    """Rows of a partition that belong to no marker and no batch."""
    if not _markers_are_due(s, scene):
        return []
    held = {*s.held, *(s.batch.keys if s.batch is not None and s.batch.partition_id == scene.name else ())}
    loose = [
        row
        for row in scene.rows.values()
        if row.num_fields and row.key not in held and row.is_readable
        if row.uid not in scene.markers and row.sampler_uid not in scene.markers and "_" not in row.uid
    ]
    # A trained batch stays in the queue until its step ends, while validation runs too: its rows have advantages.
    stays = s.choices.mode == "separate_async" or s.stage == "validate"
    trained = set(keys_of(scene.having(loose, "advantages"))) if stays else set()
    return [row for row in loose if row.key not in trained]


def _markers_are_due(s: Situation, scene: Scene) -> bool:
    """False where rows without a marker are right: the stage has a batch in this partition and nobody told which."""
    if scene.name == s.partition_id:
        return s.batch is not None or s.stage in DUE
    return s.stage is not None


def partition_mixup(s: Situation) -> Iterator[Finding]:
    """partition_mixup: one uid in `train` and in `val`; the validate flag went wrong on the way."""
    train, val = s.scenes.get("train"), s.scenes.get("val")
    if train is None or val is None:
        return
    home, other = (val, train) if s.partition_id == "val" else (train, val)
    theirs = {*home.markers, *home.rows_of}
    uids = [uid for uid in dict.fromkeys([*other.markers, *other.rows_of]) if uid in theirs]
    if not uids:
        return
    rows = [row for uid in uids for row in other.rows_of.get(uid, [])]
    double = [uid for uid in uids if uid in home.markers and uid in other.markers]
    keys = [key for uid in uids for key in ([uid] if uid in double else keys_of(other.rows_of.get(uid, [])) or [uid])]
    waits = [uid for uid in uids if home.markers.get(uid, {}).get("status") in IN_FLIGHT]
    where = f"{few(uids)} {verb(len(uids), 'is', 'are')} in {home.name}"
    yield Finding(
        "partition_mixup",
        "error",
        f"{where} and in {other.name}, with {some(len(rows), 'row')} in {other.name}: "
        f"the agent loop took prompts of {home.name} for prompts of {other.name}."
        + (f" {home.name} waits for {few(waits)} in vain." if waits else ""),
        f"See how the flag `validate` reaches the agent loop; clear these keys in {other.name} and submit the prompts "
        "again.",
        other.name if not double else home.name,
        tuple(keys),
        numbers={f"rows_in_{other.name}": len(rows), "uids": len(uids)},
        view="partitions",
    )


def stale_readiness(s: Situation) -> Iterator[Finding]:
    """stale_readiness: the controller counts more ready rows in a partition than it has keys."""
    ready = s.fact("ready_rows", {})
    for name, count in ready.items() if isinstance(ready, dict) else ():
        keys = s.snapshot.partitions[name].keys if name in s.snapshot.partitions else ()
        if count <= len(keys):
            continue
        others = [row for scene in s.scenes.values() if scene.name != name for row in scene.rows.values()]
        yield Finding(
            "stale_readiness",
            "error",
            f"{name} holds {some(len(keys), 'key')}, yet the controller counts {some(count, 'ready row')} there: "
            + (f"{few(keys_of(others))} of another partition reuses the freed index, and " if others else "")
            + "a store older than 0.1.9 shares one readiness map between partitions.",
            "Use TransferQueue 0.1.9 or later.",
            name,
            keys_of(others),
            numbers={f"ready_in_{name}": count, f"keys_in_{name}": len(keys)},
            view="partitions",
        )


def uid_column(s: Situation) -> Iterator[Finding]:
    """uid_key_mismatch (reads uid): the column groups the rows otherwise than the keys do."""
    rows = [row for row in s.readable_rows if row.is_readable]
    column = s.read("uid", rows)
    read = [row for row in rows if row.key in column]
    wrong = [row for row in read if str(column[row.key]) != row.uid]
    if not wrong:
        return
    by_uid = len({str(column[row.key]) for row in read})
    by_key = len({row.uid for row in read})
    effect = "prompts are merged" if by_uid < by_key else "groups fall apart, and a group of one gets its raw reward"
    if by_uid == by_key:
        effect = "rewards are compared with those of another prompt"
    yield Finding(
        "uid_key_mismatch",
        "error",
        f"The uid column of {few(keys_of(wrong))} says something else than the key: "
        f"{some(by_uid, 'group')} by the column, {by_key} by the keys. The advantage stage groups by the column, so "
        f"{effect}.",
        "Write the prompt's uid, one item a row, into the uid column: the part of the key before its last two numbers.",
        s.partition_id,
        keys_of(wrong),
        ("uid",),
        {"groups_by_uid": by_uid, "groups_by_key": by_key, "rows": len(wrong)},
        tuple(f"{row.key}: uid {column[row.key]!r}" for row in wrong[:3]),
        view="group_board",
    )


def unreadable(s: Situation) -> Iterator[Finding]:
    """value_unreadable: the controller lists a value, and a read does not bring it."""
    for partition_id, rows in s.observed.unreadable.items():
        keys = tuple(rows)
        fields = tuple(dict.fromkeys(field for names in rows.values() for field in names))
        if keys:
            yield Finding(
                "value_unreadable",
                "error",
                f"The controller lists {few(fields)} of {few(keys)} as written, but the value cannot be read: a late "
                "clear of the reused slot removed it, or its storage unit is gone.",
                "Clear the row and generate it again; use a TransferQueue with the three-step clear (0.1.9 or later).",
                partition_id,
                keys,
                fields,
                {"rows": len(keys)},
            )
