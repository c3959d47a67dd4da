"""What the sampler will throw away or leave out before it takes a batch: stale, failed and empty groups.

verl 0.9.1: trainer/ppo/v1/replay_buffer.py, _terminal_eviction_reasons of both buffers. In sync mode a failed group
is sampled like any other (unless it left no row and sync_refill_failed_groups is set); an async buffer evicts it with
its good rows and asks for a fresh prompt. With the strategy `drop` an async buffer evicts prompts whose marker is older
than the threshold. In `val` nothing is evicted.
"""

from __future__ import annotations

from collections.abc import Iterator

from kitlib.inspector.doctor.finding import Finding, few, some, verb
from kitlib.inspector.doctor.scene import grouped, sessions_of, whole
from kitlib.inspector.doctor.situation import Situation

EVICTING = ("sample",)


def stale_groups(s: Situation) -> Iterator[Finding]:
    """all_stale: every settled prompt is beyond the threshold; stale_groups: some are."""
    ages = stale(s)
    if not ages:
        return
    threshold, settled = s.choices.threshold, s.scene.settled
    going = evicted(s)
    rest = [uid for uid in settled if uid not in going]
    numbers = {
        "threshold": threshold,
        "age": max(ages.values()),
        "ages": list(ages.values()),
        "refill": len(ages),
        "sampleable": len(rest),
        "settled": len(settled),
        "lag_of_weights": _lag(s, ages),
    }
    if len(ages) == len(settled):
        yield Finding(
            "all_stale",
            "error",
            f"All {some(len(ages), 'settled prompt')} have an age of up to {max(ages.values())}, above the threshold "
            f"of {threshold}: all of them and their rows will be evicted and as many fresh prompts asked for. "
            f"The age counts from the step on the marker{_waited(s, ages)}.",
            "Raise trainer.v1.sampler.max_off_policy_threshold, or submit fewer prompts ahead "
            f"(trainer.v1.{s.choices.mode}.num_warmup_batches).",
            s.partition_id,
            tuple(ages),
            numbers=numbers,
            view="staleness",
        )
        return
    yield Finding(
        "stale_groups",
        "info",
        f"{len(ages)} of {some(len(settled), 'settled prompt')} {verb(len(ages), 'is', 'are')} older than the "
        f"threshold of {threshold} and will be evicted with {verb(len(ages), 'its', 'their')} rows and replaced by "
        f"{some(len(ages), 'fresh one')}; {len(rest)} remain.",
        "Nothing to do if this is rare; else raise trainer.v1.sampler.max_off_policy_threshold or submit less ahead.",
        s.partition_id,
        tuple(ages),
        numbers=numbers,
        view="staleness",
    )


def failed_groups(s: Situation) -> Iterator[Finding]:
    """failure_evicted: failed groups go with their good rows; failure_no_refill: and nothing replaces them."""
    failed = failures(s)
    if not failed:
        return
    rows = sum(len(s.scene.rows_of.get(uid, [])) for uid in failed)
    expected = sum(s.sessions_expected(uid) or 0 for uid in failed)
    rest = len(s.scene.settled) - len(evicted(s)) + len(s.scene.in_flight)
    stops = not refills(s) and s.needed is not None and rest < s.needed
    numbers = {
        "rows_lost": rows,
        "rows_expected": expected,
        "refill": len(failed) if refills(s) else 0,
        "failed": len(failed),
        "settled": len(s.scene.settled),
        "in_flight": len(s.scene.in_flight),
        "needed": s.needed,
        "left": rest,
    }
    says = (
        f"{few(failed)} {verb(len(failed), 'has', 'have')} the status failure and will be thrown away, "
        f"{some(rows, 'good row')} of {expected} with {verb(len(failed), 'it', 'them')}"
    )
    if stops:
        says += f"; nothing replaces {verb(len(failed), 'it', 'them')}, {rest} of {s.needed} prompts are left, and "
        says += "sample waits for ever."
    else:
        says += (
            f", and {some(len(failed), 'fresh prompt')} will be asked for."
            if refills(s)
            else f"; nothing replaces {verb(len(failed), 'it', 'them')}, but enough others are left this time."
        )
    yield Finding(
        "failure_evicted" if refills(s) else "failure_no_refill",
        "error" if stops else "warning",
        says,
        "Give the sampler a refill_fn, or let the dataloader start its next epoch; look at the log of the agent loop."
        if stops
        else "Look at the log of the agent loop. If the good rows should train, let a failing session return nothing "
        "instead of raising.",
        s.partition_id,
        tuple(failed),
        numbers=numbers,
    )


def failed_validation(s: Situation) -> Iterator[Finding]:
    """failed_val_sessions: validation prompts with fewer sessions than val_kwargs.n; each lost one counts as wrong."""
    if s.stage != "validate":
        return
    lost = {}
    registered = grouped(row for row in s.scene.rows.values() if not row.is_padding)  # with fields or without
    for uid in s.scene.settled:
        expected = s.sessions_expected(uid) or 0
        present = len(sessions_of(registered.get(uid, []))) if "_" not in uid else expected
        if present < expected and not _has_rows_elsewhere(s, uid):
            lost[uid] = (present, expected)
    if not lost:
        return
    rows = sum(present for present, _ in lost.values())
    expected = sum(wanted for _, wanted in lost.values())
    yield Finding(
        "failed_val_sessions",
        "warning",
        f"{few(list(lost))} {verb(len(lost), 'has', 'have')} {rows} of {some(expected, 'validation session')}: the "
        "others failed or returned nothing. Each counts as wrong in acc, and is left out of all other numbers.",
        "Look at the log of the agent loop before you compare this validation with another one.",
        s.partition_id,
        tuple(lost),
        numbers={
            "rows": rows,
            "rows_expected": expected,
            "sessions": rows,
            "sessions_expected": expected,
            "sessions_lost": expected - rows,
            "failed": len(s.scene.with_status(["failure"])),
            "prompts": len(s.scene.markers),
        },
    )


def stale(s: Situation) -> dict[str, int]:
    """{uid: age} of the finished prompts that an async buffer drops."""
    threshold = s.choices.threshold
    if s.stage not in EVICTING or s.partition_id == "val" or threshold is None or s.global_steps is None:
        return {}
    if s.choices["trainer.v1.sampler.max_off_policy_strategy"] != "drop":
        return {}
    steps = {uid: whole(s.scene.markers[uid].get("global_steps")) for uid in s.scene.markers}
    ages = {uid: s.global_steps - step + 1 for uid, step in steps.items() if step is not None}
    finished = set(s.scene.with_status(["finished"]))
    return {uid: age for uid, age in ages.items() if uid in finished and age > threshold}


def failures(s: Situation) -> list[str]:
    """Failed groups that are evicted: all of them in the async modes, the empty ones in sync with a refill."""
    if s.stage not in EVICTING or s.partition_id == "val":
        return []
    failed = s.scene.with_status(["failure"])
    if s.choices.is_async:
        return failed
    refill = s.choices["trainer.v1.sampler.sync_refill_failed_groups"]
    return [uid for uid in failed if refill and uid not in s.scene.rows_of]


def evicted(s: Situation) -> set[str]:
    """Every prompt that will not be sampled."""
    return {*stale(s), *failures(s)}


def refills(s: Situation) -> bool:
    """True unless the context says that evicted prompts cannot be replaced."""
    return s.fact("refill_available", True) is not False and not s.fact("dataloader_exhausted", False)


def _lag(s: Situation, uids: dict[str, int]) -> int | None:
    """Smallest lag of the rows of these prompts behind the trainer's weights."""
    versions = [whole(r.tag.get("max_global_steps")) for uid in uids for r in s.scene.rows_of.get(uid, [])]
    known = [version for version in versions if version is not None]
    return (s.global_steps or 0) - 1 - max(known) if known else None


def _waited(s: Situation, uids: dict[str, int]) -> str:
    return "; the weights that made the rows lag by 0, the prompts only waited" if _lag(s, uids) == 0 else ""


def _has_rows_elsewhere(s: Situation, uid: str) -> bool:
    return any(uid in scene.rows_of for name, scene in s.scenes.items() if name != s.partition_id)
