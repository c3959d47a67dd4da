"""Before and after: what a clear, a sampling or a restart did to the queue.

verl 0.9.1: the sync sampler with a group filter discards what it does not take; the async modes save and restore the
queue with a checkpoint and submit the prompts in flight again (trainer_base.py, _reissue_inflight_prompts).
"""

from __future__ import annotations

from collections.abc import Iterator

from kitlib.inspector.doctor.finding import Finding, few, some, verb
from kitlib.inspector.doctor.scene import scene_of
from kitlib.inspector.doctor.situation import Situation
from kitlib.keys import uid_of


def surplus_discarded(s: Situation) -> Iterator[Finding]:
    """surplus_discarded: settled groups that sampling threw away."""
    if s.before is None or s.batch is None or s.stage == "clear" or s.partition_id not in s.before.partitions:
        return
    before = scene_of(s.before.partitions[s.partition_id])
    sampled = {row.uid for row in s.rows}
    gone = [uid for uid in before.settled if uid not in sampled]
    gone = [uid for uid in gone if uid not in s.scene.markers and uid not in s.scene.rows_of]
    if not gone:
        return
    rows = sum(len(before.rows_of.get(uid, [])) for uid in gone)
    filtered = s.choices.mode == "sync" and s.choices.filter_metric is not None
    why = "sync mode with the group filter keeps no buffer" if filtered else "they were evicted"
    yield Finding(
        "surplus_discarded",
        "info",
        f"{len(sampled)} of {some(len(before.settled), 'settled group')} were sampled and the other {len(gone)} "
        f"({some(rows, 'row')}) thrown away: {why}.",
        "Lower algorithm.filter_groups.max_inflight_gen_batches to waste less.",
        s.partition_id,
        tuple(gone),
        numbers={
            "groups_before": len(before.settled),
            "sampled": len(sampled),
            "discarded": len(gone),
            "rows_discarded": rows,
        },
        view="diff",
    )


def wrong_keys_cleared(s: Situation) -> Iterator[Finding]:
    """wrong_keys_cleared: keys that went although nobody asked for it, or stayed although somebody did."""
    requested = s.fact("clear_requested")
    if requested is None or _is_still_to_run(s):
        return
    there = {key for part in s.snapshot.partitions.values() for key in part.keys}
    earlier = s.before.partitions.values() if s.before is not None else ()
    sampled = {uid_of(key) for key in requested}  # their markers went when they were sampled
    gone = [key for part in earlier for key in part.keys if key not in there and key not in sampled]
    cleared = set(s.fact("cleared", gone))
    wrong = [key for key in dict.fromkeys([*gone, *sorted(cleared)]) if key not in set(requested)]
    stayed = [key for key in requested if key in there]
    if not wrong and not stayed:
        return
    went = f"{few(wrong)} {verb(len(wrong), 'was', 'were')} cleared although nobody asked for it"
    left = f"{few(stayed)} {verb(len(stayed), 'is', 'are')} there and should have been cleared"
    says = "; ".join(part for part, true in ((went, wrong), (left, stayed)) if true)
    yield Finding(
        "wrong_keys_cleared",
        "error",
        f"{says}. A clear by index instead of by key hits whatever reuses the index.",
        "Clear by keys: tq.kv_clear(keys=batch.keys, partition_id=batch.partition_id). Generate lost rows again.",
        s.partition_id,
        tuple(wrong or stayed),
        numbers={
            "requested": len(requested),
            "cleared": len(cleared),
            "wrong": len(wrong),
            "stayed": len(stayed),
        },
        view="diff",
    )


def _is_still_to_run(s: Situation) -> bool:
    """True if the clear has been asked for and not been made: nobody says what was cleared, and its stage comes next
    or there is no picture of before.
    """
    return "cleared" not in s.context and (s.stage == "clear" or s.before is None)


def reissue_in_flight(s: Situation) -> Iterator[Finding]:
    """reissue_in_flight: prompts that were being generated when the queue was saved."""
    uids = s.scene.in_flight
    if s.stage != "resume" or not uids:
        return
    rows = [row for uid in uids for row in s.scene.rows_of.get(uid, [])]
    yield Finding(
        "reissue_in_flight",
        "info" if s.choices.is_async else "warning",
        f"{some(len(uids), 'prompt')} {verb(len(uids), 'was', 'were')} in flight when the queue was saved "
        f"({few(uids)}): {verb(len(uids), 'it has', 'they have')} to be submitted again at step {s.global_steps}, and "
        f"{some(len(rows), 'old row')} cleared.",
        "verl does this itself in the async modes; in sync mode submit them by hand.",
        s.partition_id,
        tuple(uids),
        numbers={"in_flight": len(uids), "old_rows_to_clear": len(rows), "new_step": s.global_steps},
    )


def prompts_lost(s: Situation) -> Iterator[Finding]:
    """prompts_lost: the dataloader has handed out prompts that are neither trained nor in the queue."""
    cursor, trained = s.fact("dataloader_cursor"), s.context.get("prompts_trained")
    if s.stage != "resume" or cursor is None or trained is None:
        return
    in_queue = len(s.scene.markers)
    lost = cursor - trained - in_queue
    if lost > 0:
        restored = "the queue was not restored" if not s.fact("queue_restored", False) else "the queue lacks some"
        yield Finding(
            "prompts_lost",
            "error",
            f"The dataloader goes on after prompt {cursor}, but {restored}: {some(lost, 'prompt')} "
            f"{verb(lost, 'is', 'are')} neither trained nor in flight and will never be.",
            f"Restore the queue with the checkpoint, or set the dataloader back by {some(lost, 'prompt')}.",
            s.partition_id,
            numbers={
                "dataloader_cursor": cursor,
                "prompts_in_queue": in_queue,
                "prompts_trained": trained,
                "prompts_lost": lost,
            },
        )


def no_prompts_after_resume(s: Situation) -> Iterator[Finding]:
    """no_prompts_after_resume: the restored dataloader stands at the end of its epoch and hands out nothing."""
    if not no_prompts_come(s):
        return
    yield Finding(
        "no_prompts_after_resume",
        "error",
        f"Resumed from step {s.fact('resumed_from_step')}, the end of an epoch: the restored dataloader hands out "
        f"nothing more, and the queue holds {some(len(s.scene.markers), 'prompt')}. No prompt will be submitted.",
        "Start the next epoch of the dataloader before the loop (or do not restore its state at the end of an epoch).",
        s.partition_id,
        tuple(s.scene.markers),
        numbers={
            "steps_per_epoch": s.fact("steps_per_epoch"),
            "resumed_from_step": s.fact("resumed_from_step"),
            "dataloader_cursor": s.fact("dataloader_cursor"),
            "prompts_in_queue": len(s.scene.markers),
        },
    )


def no_prompts_come(s: Situation) -> bool:
    """True at a restart, or in its first step, if the dataloader is at its end and the queue holds too few prompts."""
    resumed = s.fact("resumed_from_step")
    if s.stage != "resume":
        is_first = resumed is not None and s.global_steps == resumed + 1
        if s.scene.markers or not is_first or not s.is_at("submit_batch_to_rollout", "sample"):
            return False
    return _is_at_end(s) and len(s.scene.markers) < (s.needed or 1)


def _is_at_end(s: Situation) -> bool:
    told = s.context.get("dataloader_exhausted")
    if told is not None:
        return bool(told)
    a_epoch, resumed = s.fact("steps_per_epoch"), s.fact("resumed_from_step")
    return bool(a_epoch and resumed) and resumed % a_epoch == 0 and s.context.get("dataloader_cursor") != 0
