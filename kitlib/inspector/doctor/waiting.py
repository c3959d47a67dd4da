"""What `sample` waits for, and whether it can end: the state machine of the prompts.

verl 0.9.1: trainer/ppo/v1/replay_buffer.py, ReplayBuffer.sample and ReplayBufferAsync. The sampler waits without a
bound until enough prompts have settled.

    pending ──> running ──> finished | failure     a prompt that never settles keeps the sampler waiting
                                                   a prompt that was never registered does so too
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kitlib.contract import STAGES
from kitlib.inspector.doctor.changes import no_prompts_come
from kitlib.inspector.doctor.eviction import evicted, refills
from kitlib.inspector.doctor.finding import Finding, few, some, verb
from kitlib.inspector.doctor.scene import Scene, sessions_of, whole
from kitlib.inspector.doctor.situation import Situation, stage_name

LONG_WAIT = 30.0  # seconds without a row after which a phase of the trainer is to blame for a stall
FRESH_ROW = 30.0  # seconds: rows are still coming in
GENERATING = ("sample", "generate", "generate_sequences", "rollout")
# Stages of a step. Generation pauses between two samplings, which is no fault, unless it has GPUs of its own.
TRAINING = tuple(name for name in STAGES if name.startswith(("compute_", "update_")) and name != "update_weights")


def stuck_prompts(s: Situation) -> Iterator[Finding]:
    """stuck_prompt: too few prompts have settled, and the rest does not look as if it would."""
    if not is_sampling(s) or stall(s) is not None or not (is_short(s) or drains(s)):
        return
    blocking = [uid for uid in s.scene.in_flight if uid not in _elsewhere(s, uid) and _has_step(s, uid)]
    done = [uid for uid in blocking if s.live.get(uid) is False or (_is_done(s, uid) and not s.live.get(uid))]
    late = [] if _still_coming(s) or done else _stragglers(s, blocking)
    stuck = done or late
    if not stuck:
        return
    first = stuck[0]
    present, expected = _sessions(s.scene, first), s.sessions_expected(first)
    yield Finding(
        "stuck_prompt",
        "error" if done else "warning",
        f"sample needs {some(s.needed or 0, 'settled prompt')} and has {len(s.scene.settled)}"
        f"{', but with the group filter nothing may be in flight' if not is_short(s) else ''}. It waits for "
        f"{few(stuck)}, {_status(s.scene, first)}; {_what_is_missing(s, first)}",
        f"If its rows are whole, tq.kv_put(key={first!r}, partition_id={s.partition_id!r}, tag={_finished(s, first)}); "
        "else clear the prompt with its rows and submit it again."
        if done
        else f"Look at the agent-loop worker of {first}; if it is gone, clear the prompt and submit it again.",
        s.partition_id,
        tuple(stuck),
        numbers={
            "needed": s.needed,
            "settled": len(s.scene.settled),
            "rows_of_prompt": len(s.scene.rows_of.get(first, [])),
            "sessions_expected": expected,
            "sessions": len(present),
        },
        evidence=tuple(f"{uid}: tag {dict(s.scene.markers[uid])}" for uid in stuck[:3]),
    )


def unreachable_batch(s: Situation) -> Iterator[Finding]:
    """unreachable_batch: settled and running prompts together are fewer than `sample` needs, and no more will come."""
    scene, needed = s.scene, s.needed or 0
    if not is_sampling(s) or s.partition_id == "val" or not s.choices.is_known:
        return
    if not scene.markers and (not s.fact("dataloader_exhausted", False) or no_prompts_come(s)):
        return  # nothing was submitted yet, or the restart is to blame
    # A marker that the sampler cannot read, and a ghost, are prompts too: they have a finding of their own.
    if len(scene.markers) + len(scene.ghosts) >= needed or (evicted(s) and refills(s)):
        return
    end = " and the dataloader is at its end" if s.fact("dataloader_exhausted") else " and nobody submits more"
    yield Finding(
        "unreachable_batch",
        "error",
        f"sample needs {some(needed, 'prompt')}; {len(scene.settled)} {verb(len(scene.settled), 'is', 'are')} settled, "
        f"{len(scene.in_flight) or 'none'} {verb(len(scene.in_flight) or 1, 'is', 'are')} in flight{end}, so it will "
        "wait for ever.",
        "Let the dataloader start its next epoch, submit more prompts, or ask for no more than there are "
        "(data.train_batch_size).",
        s.partition_id,
        tuple(scene.settled + scene.in_flight),
        numbers={"needed": needed, "settled": len(scene.settled), "in_flight": len(scene.in_flight)},
    )


def wait_blocked(s: Situation) -> Iterator[Finding]:
    """wait_blocked: with the strategy `wait`, an old prompt in flight holds back a batch that is complete."""
    threshold = s.choices.threshold
    if not is_sampling(s) or s.partition_id == "val" or threshold is None or s.global_steps is None:
        return
    if s.choices["trainer.v1.sampler.max_off_policy_strategy"] != "wait" or is_short(s):
        return
    ages = {uid: age for uid in s.scene.in_flight if (age := s_age(s, uid)) is not None and age >= threshold}
    if ages:
        oldest = max(ages.values())
        yield Finding(
            "wait_blocked",
            "warning",
            f"{len(s.scene.settled)} prompts have settled and sample needs {s.needed}, but {few(list(ages))} "
            f"{verb(len(ages), 'is', 'are')} still in flight at age {oldest}, and with the strategy wait nothing is "
            f"sampled while a prompt has reached the threshold of {threshold}.",
            "Wait for it if its sessions still run; otherwise clear it, raise "
            "trainer.v1.sampler.max_off_policy_threshold, or set max_off_policy_strategy to drop.",
            s.partition_id,
            tuple(ages),
            numbers={
                "threshold": threshold,
                "age": oldest,
                "ages": list(ages.values()),
                "settled": len(s.scene.settled),
                "needed": s.needed,
                "in_flight": len(s.scene.in_flight),
            },
            view="staleness",
        )


def stalled_elsewhere(s: Situation) -> Iterator[Finding]:
    """stalled_elsewhere: no row has come since another phase began, and that phase goes on."""
    seconds = stall(s)
    if seconds is None:
        return
    phase, uids = s.fact("trainer_phase"), s.scene.in_flight
    yield Finding(
        "stalled_elsewhere",
        "warning",
        f"No row has been written since {_shortly_after(s, seconds)}{phase} began {seconds:.0f} s ago, with "
        f"{some(len(uids), 'prompt')} in flight: the queue is in order, {phase} holds everything up.",
        f"Look at {phase}: the logs of the trainer and of the LLM servers at that time. Nothing in the queue needs "
        "mending.",
        s.partition_id,
        tuple(uids),
        numbers={
            "seconds_in_phase": s.fact("seconds_in_phase"),
            "seconds_since_last_row": s.fact("seconds_since_last_row"),
            "in_flight": len(uids),
            "running": len(s.scene.with_status(["running"])),
            "pending": len(s.scene.with_status(["pending"])),
            "settled": len(s.scene.settled),
            "needed": s.needed,
        },
        evidence=(f"phase of the trainer: {phase}",),
    )


def is_sampling(s: Situation) -> bool:
    return s.stage in ("sample", "validate")


def is_short(s: Situation) -> bool:
    """True if the sampler cannot take its batch yet."""
    going = evicted(s)
    return s.needed is not None and len([uid for uid in s.scene.settled if uid not in going]) < s.needed


def drains(s: Situation) -> bool:
    """True in sync mode with a group filter: the batch is taken when nothing is in flight any more."""
    return s.choices.mode == "sync" and s.choices.filter_metric is not None and s.partition_id != "val"


def stall(s: Situation) -> float | None:
    """Seconds that another phase of the trainer has been holding everything up, None if none does."""
    phase, in_phase, quiet = (s.fact(name) for name in ("trainer_phase", "seconds_in_phase", "seconds_since_last_row"))
    if not phase or in_phase is None or quiet is None or not s.scene.in_flight:
        return None
    pauses = stage_name(phase) in TRAINING and s.choices.mode != "separate_async" and not is_sampling(s)
    if phase in GENERATING or pauses:
        return None
    return float(in_phase) if min(in_phase, quiet) >= LONG_WAIT and in_phase - quiet < FRESH_ROW else None


def _shortly_after(s: Situation, seconds: float) -> str:
    return "shortly after " if s.fact("seconds_since_last_row") < seconds else ""


def s_age(s: Situation, uid: str) -> int | None:
    """Age of a prompt as the sampler counts it, from the step on its marker; 1 for a prompt of this step."""
    step = whole(s.scene.markers[uid].get("global_steps"))
    return None if step is None or s.global_steps is None else s.global_steps - step + 1


def _stragglers(s: Situation, blocking: list[str]) -> list[str]:
    """The prompts that are left when nearly all others have settled; earlier, waiting is all there is to do."""
    settled = len(s.scene.settled)
    if not settled or len(blocking) > max(1, (settled + len(blocking)) // 4):
        return []
    return [uid for uid in blocking if not s.live.get(uid) and not _is_fresh(s, uid)]


def _has_step(s: Situation, uid: str) -> bool:
    """False for a marker that the sampler stops at: that is another finding."""
    return "global_steps" in s.scene.markers[uid]


def _is_fresh(s: Situation, uid: str) -> bool:
    """True for a training prompt that an async mode has submitted in this very step and that has no row yet."""
    return s.choices.is_async and s.partition_id != "val" and uid not in s.scene.rows_of and (s_age(s, uid) or 0) == 1


def _still_coming(s: Situation) -> bool:
    quiet = s.fact("seconds_since_last_row")
    return quiet is not None and quiet < FRESH_ROW


def _elsewhere(s: Situation, uid: str) -> set[str]:
    """The uid itself if its rows went to another partition: that is another finding."""
    others = [scene for scene in s.scenes.values() if scene.name != s.partition_id]
    return {uid} if any(uid in scene.rows_of for scene in others) else set()


def _sessions(scene: Scene, uid: str) -> set[int | None]:
    return {outputs[0].session_id for outputs in sessions_of(scene.rows_of.get(uid, [])).values()}


def _is_done(s: Situation, uid: str) -> bool:
    expected = s.sessions_expected(uid)
    return bool(expected) and len(_sessions(s.scene, uid)) >= (expected or 0)


def _status(scene: Scene, uid: str) -> str:
    tag = scene.markers[uid]
    return f"{tag.get('status')} since step {tag.get('global_steps')}"


def _finished(s: Situation, uid: str) -> dict[str, Any]:
    """The tag of the marker, settled."""
    return {"is_prompt": True, "status": "finished", "global_steps": s.scene.markers[uid].get("global_steps")}


def _what_is_missing(s: Situation, uid: str) -> str:
    present, expected = _sessions(s.scene, uid), s.sessions_expected(uid)
    if s.live.get(uid) is False and not _is_done(s, uid):
        return f"{len(present)} of {expected} sessions have a row, and no task of it is running any more."
    if expected is None:
        return f"{some(len(present), 'session')} of it {verb(len(present), 'has', 'have')} a row."
    absent = [str(i) for i in range(expected) if i not in present]
    if not absent:
        return f"all {expected} of its sessions have a row, so only the closing status is missing."
    if not present:
        return f"none of its {expected} sessions has a row." if expected > 1 else "its session has no row."
    which = f"session {few(absent)} {verb(len(absent), 'has', 'have')} no row"
    return f"{which}, so {verb(len(absent), 'it is', 'they are')} still generating or lost."
