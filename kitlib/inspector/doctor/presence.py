"""Presence: does every row have what this stage and the stages behind it read?

verl 0.9.1: a field is delivered only if every requested key has it (TransferQueue 0.1.11), so one row without it
takes the column from the whole batch, without an error. What is needed comes from kitlib.contract and the config.
Fields that a stage in between still writes are not missed yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from kitlib.contract import FIELDS, STAGES, needs
from kitlib.inspector.doctor.choices import Choices
from kitlib.inspector.doctor.finding import Finding, Severity, few, some, verb
from kitlib.inspector.doctor.scene import Row, keys_of
from kitlib.inspector.doctor.situation import Situation
from kitlib.transfer_queue.explain import near_names

ASIDE = ("submit_batch_to_rollout", "generate_sequences", "save_checkpoint", "update_weights", "validate", "clear")
# verl does without these: numbers disappear, nothing stops.
FORGIVEN = {"validate": ("extra_fields", "reward_model", "data_source")}
# Written after the handle of old_log_prob was made; the advantage stage asks for them by name.
WRITTEN_BESIDE = {"compute_advantage": ("ref_log_prob", "values")}
IMAGE_PARTS = ("image", "image_url", "video", "video_url")


def missing_fields(s: Situation) -> Iterator[Finding]:
    """field_missing: rows that lack a field which this stage or a later one reads."""
    rows = s.rows if s.batch is not None else s.settled_rows
    lacking: dict[tuple[tuple[str, ...], Severity, str], list[str]] = {}
    for field, (stage, severity) in wanted(s).items():
        without = _without(s, rows if severity == "error" or field in FORGIVEN["validate"] else s.real_rows, field)
        nobody_has_it = len(without) >= len(s.real_rows)
        if nobody_has_it and (field in optional(s) or not s.choices.is_known):
            continue  # the loop does not set it, or the config that nobody knows may not ask for it
        if without:
            lacking.setdefault((keys_of(without), severity, stage), []).append(field)
    for (keys, severity, stage), fields in lacking.items():
        yield _missing(s, fields, keys, len(rows), stage, severity)


def missing_prompt_rows(s: Situation) -> Iterator[Finding]:
    """field_missing at resume: prompts in flight are read in one get to be generated again."""
    uids = s.scene.in_flight
    if s.stage != "resume" or not s.choices.is_async or not uids:
        return
    partition = s.scene.partition
    without = [uid for uid in uids if not partition.has(uid, "raw_prompt")]
    if without:
        yield _missing(s, ["raw_prompt"], tuple(without), len(uids), "resume", "error")


def missing_in_request(s: Situation) -> Iterator[Finding]:
    """field_missing: a get about to be made asks for a field that some of its rows lack."""
    if s.request is None or not s.request.fields or s.request.partition_id not in s.snapshot.partitions:
        return
    partition = s.snapshot.partitions[s.request.partition_id]
    there = [key for key in dict.fromkeys(s.request.keys) if key in partition]
    lacking: dict[tuple[str, ...], list[str]] = {}
    for field in s.request.fields:
        if without := tuple(key for key in there if not partition.has(key, field)):
            lacking.setdefault(without, []).append(field)
    for keys, fields in lacking.items():
        yield _missing(s, fields, keys, len(there), "the get", "error")


def narrowed_handle(s: Situation) -> Iterator[Finding]:
    """batch_fields_narrowed: the handle names fields, and one that the stage reads is not among them."""
    if s.batch is None or s.batch.fields is None or s.stage not in STAGES:
        return
    named = set(s.batch.fields)
    reads = needs(s.stage, s.choices.config).reads
    late = WRITTEN_BESIDE.get(s.stage, ())
    hidden = [f for f in reads if f not in (*named, *late) and s.rows and all(s.scene.has(s.rows, f))]
    if hidden:
        yield Finding(
            "batch_fields_narrowed",
            "error",
            f"The handle of the batch lists {some(len(named), 'field')} and not {few(hidden)}, which {s.stage} reads "
            "and every row has: a get by this handle leaves them out or refuses.",
            f"Set batch.fields to None, or add {few(hidden)} to it.",
            s.partition_id,
            s.batch.keys,
            tuple(hidden),
            {"fields_of_handle": len(named), "hidden": len(hidden), "rows": len(s.rows)},
            view="batch_handle",
        )


def missing_images(s: Situation) -> Iterator[Finding]:
    """images_missing (reads raw_prompt, multi_modal_inputs): the prompt shows an image, the row has none."""
    prompts = s.read("raw_prompt", s.readable_rows)
    with_images = [row for row in s.readable_rows if _has_image(prompts.get(row.key))]
    inputs = s.read("multi_modal_inputs", with_images)
    without = [row for row in with_images if not inputs.get(row.key)]
    dims = {_dims(s, row, "position_ids") for row in without}
    if without:
        yield Finding(
            "images_missing",
            "error",
            f"{some(len(without), 'prompt')} {verb(len(without), 'contains', 'contain')} an image part, but "
            f"{few(keys_of(without))} {verb(len(without), 'has', 'have')} no multi_modal_inputs"
            f"{' and position_ids of one dim' if dims == {1} else ''}: the forward pass will not see the images.",
            "Let the agent loop return the processed images (multi_modal_data) with its output.",
            s.partition_id,
            keys_of(without),
            ("multi_modal_inputs", "position_ids") if dims == {1} else ("multi_modal_inputs",),
            {
                "prompts_with_images": len(with_images),
                "rows_with_inputs": len(with_images) - len(without),
                "position_ids_dims": min((num for num in dims if num), default=None),
            },
        )


def wanted(s: Situation) -> dict[str, tuple[str, Severity]]:
    """{field: (first stage that reads it, severity of its absence)} from this stage on."""
    if s.stage not in STAGES or s.stage in ("submit_batch_to_rollout", "generate_sequences", "clear"):
        return {}
    found: dict[str, tuple[str, Severity]] = {}
    pending: set[str] = set()
    for name in _path(s.stage, s.choices):
        stage = needs(name, s.choices.config)
        for field in stage.reads:
            if field not in pending:
                found.setdefault(field, (name, _severity(field, name, s.choices)))
        if name == s.stage:
            for field in stage.optional:
                found.setdefault(field, (name, "warning"))
        pending.update(stage.writes)
    return found


def optional(s: Situation) -> tuple[str, ...]:
    return needs(s.stage, s.choices.config).optional if s.stage in STAGES else ()


def _path(stage: str, choices: Choices) -> list[str]:
    """The stages from here on that run and read rows of the same partition."""
    if stage == "validate":
        return ["compute_reward_colocate", "validate"] if choices.scores_after_sampling else ["validate"]
    order = list(STAGES)
    later = [name for name in order[order.index(stage) :] if name not in ASIDE]
    return [name for name in later if name == stage or needs(name, choices.config).runs]


def _severity(field: str, stage: str, choices: Choices) -> Severity:
    if field in FORGIVEN.get(stage, ()):
        return "warning"
    if field == "rollout_log_probs" and not choices.has_correction:
        return "warning"  # only numbers about the difference to the actor disappear
    return "error"


def _without(s: Situation, rows: Sequence[Row], field: str) -> list[Row]:
    partition = s.scene.partition
    column = partition.column_of.get(field)
    if column is None:
        return list(rows)
    there = partition.present[s.positions(rows), column]
    return [] if there.all() else [rows[i] for i in np.nonzero(~there)[0].tolist()]


def _missing(
    s: Situation, fields: list[str], keys: tuple[str, ...], num_rows: int, stage: str, severity: Severity
) -> Finding:
    have = num_rows - len(keys)
    names = few(fields)
    if have:
        says = (
            f"{names} {verb(len(fields), 'is', 'are')} on {have:,} of {some(num_rows, 'row')} and absent on "
            f"{few(keys)}; a get then leaves the column out for all of them, and {stage} needs it."
        )
    else:
        says = f"No row of {num_rows:,} has {names}, and {stage} needs {verb(len(fields), 'it', 'them')}."
    slips = _slips(s, fields, keys)
    meant = few([f"{few(near)} under the name {field}" for field, near in slips.items()])
    return Finding(
        "field_missing",
        severity,
        says,
        f"Is it misspelt? Write {meant}." if slips else _way_out(s, fields, stage),
        s.partition_id,
        keys,
        tuple(fields),
        {"have": have, "of": num_rows},
        tuple(f"there is {few(near)} on these rows: is it {field}, misspelt?" for field, near in slips.items()),
    )


def _way_out(s: Situation, fields: list[str], stage: str) -> str:
    if fields == ["rollout_log_probs"] and not s.choices["actor_rollout_ref.rollout.calculate_log_probs"]:
        return "Set actor_rollout_ref.rollout.calculate_log_probs to true, or turn off what reads it (bypass_mode)."
    if fields == ["rm_scores"]:
        return f"Score these rows, or {_without_them(s)}."
    if stage == "resume":
        return "Clear these prompts and submit them from the data set; then submit the others again."
    if set(fields) <= {"teacher_ids", "teacher_logprobs"}:
        return "Use one output a session with distillation, or write the teacher columns on every output."
    return f"Write {few(fields)} on these rows, or {_without_them(s)}."


def _without_them(s: Situation) -> str:
    return "clear their prompts with all their rows" if s.is_before_sampling else "take the rows out of the batch"


def _slips(s: Situation, fields: Sequence[str], keys: Sequence[str]) -> dict[str, list[str]]:
    """{field: names outside the contract on these rows that it may have been meant by}."""
    partition = s.scene.partition
    strange = [name for name in partition.fields if name not in FIELDS]
    found = {}
    for field in fields:
        near = [n for n in near_names(field, strange) if any(partition.has(k, n) for k in keys if k in partition)]
        if near:
            found[field] = near
    return found


def _dims(s: Situation, row: Row, field: str) -> int | None:
    cell = s.scene.partition.cell(row.key, field)
    return None if cell is None or cell.layout == "object" else len(cell.shape)


def _has_image(messages: object) -> bool:
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        return False
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return any(isinstance(part, dict) and part.get("type") in IMAGE_PARTS for part in parts)
