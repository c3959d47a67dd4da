"""Checks of predictions about the loop and the modes, and a run that is slower than it should be.

The truth comes from the calls and the time lines of the runs that the notebook has made, and from the queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kitlib.inspector.timeline import DRIVER
from kitlib.lessons import answers
from kitlib.lessons.answers import Answer, open_answer, unanswered
from kitlib.lessons.fit_four_ways.calls import CallLog
from kitlib.lessons.fit_four_ways.running import ModeRun, run_mode
from kitlib.lessons.fit_four_ways.scripted import Script
from kitlib.lessons.plain_checks import check_choice, check_number, check_order, names_mistakes
from kitlib.lessons.reading import name_of

OVERLAP = 0.005  # share of the training beside which a server decodes: one that pauses has none


def check_order_of_calls(answer: Any, calls: CallLog, step: int = 1) -> Answer:
    """TO_ORDER in the order in which `fit` made these calls in a step; the first call of each name counts."""
    known = list(dict.fromkeys(call.name for call in calls.of_step(step)))
    return check_order(_plain_names(answer), sorted(TO_ORDER, key=known.index), BECAUSE)


def _plain_names(answer: Any) -> Any:
    """A list or an array of names as a list, without spaces and brackets; anything else as it is."""
    names = answer.tolist() if hasattr(answer, "tolist") else answer
    if not isinstance(names, list | tuple):
        return answer
    return [name.strip().removesuffix("()") if isinstance(name, str) else name for name in names]


TO_ORDER = (
    "submit_batch_to_rollout",
    "sample",
    "on_sample_end",
    "update_actor",
    "on_step_end",
    "compute_metrics",
    "clear",
)
BECAUSE = {
    ("submit_batch_to_rollout", "sample"): "what was not submitted cannot be sampled",
    ("sample", "on_sample_end"): "the hook runs when the sample is there",
    ("on_sample_end", "update_actor"): "on one GPU the servers must be asleep before the trainer needs the memory",
    ("sample", "update_actor"): "there is nothing to train on yet",
    ("update_actor", "on_step_end"): "on_step_end sends the new weights to the servers, and there are none yet",
    (
        "on_step_end",
        "compute_metrics",
    ): "the step ends with the weight sync; the numbers come after its clock has stopped",
    ("compute_metrics", "clear"): "metrics read the rows that clear removes",
}


def check_bound(answer: Any, t_gen: float, t_train: float) -> Answer:
    """The largest speed-up that overlapping can give."""
    longer, total = max(t_gen, t_train), t_gen + t_train
    wrong = {
        2.0: "2 is the best there is, and only if both times are equal",
        longer / min(t_gen, t_train): "compare with doing one after the other, which takes the SUM",
        longer: "these are the seconds of a step; the speed-up is the serial time divided by it",
        total: "these are the seconds of the serial step; divide by those of the overlapped one",
        total / min(t_gen, t_train): "nobody is done before the SLOWER of the two",
        longer / total: "upside down: how many times faster, so old time divided by new time",
    }
    return check_number(answer, total / longer, wrong, tolerance=6e-3)


def check_modes(pauses: Any, waits: Any, runs: Mapping[str, ModeRun]) -> Answer:
    """In which runs does the server pause while the trainer trains, and in which does a step wait for its slowest
    answer?"""
    if unanswered(pauses, waits):
        return open_answer()
    overlaps = {name for name, run in runs.items() if run.overlap_share > OVERLAP}
    runs_on = {name for name, run in runs.items() if run.num_in_flight > 0}
    no_pause = {
        name: f"here the server has decoded for {runs[name].overlap:.1f} s while the trainer computed"
        for name in overlaps
    }
    no_wait = {
        name: f"when its batch was complete, {runs[name].num_in_flight:.1f} requests (mean) were still being decoded"
        for name in runs_on
    }
    said = [f"pauses: {text}" for text in names_mistakes(pauses, set(runs) - overlaps, no_pause, _HINT_PAUSES)]
    said += [f"waits: {text}" for text in names_mistakes(waits, set(runs) - runs_on, no_wait, _HINT_WAITS)]
    if said:
        return answers.mistakes(said)
    return answers.right("colocate_async no longer waits for the slowest answer; separate_async does not pause either")


_HINT_PAUSES = "where trainer and server share a device, only one of them can work"
_HINT_WAITS = "without a window of prompts that run ahead, the batch is complete when its last answer is"


def check_num_prompts(answer: Any, trainer: Any) -> Answer:
    """How many prompts has the trainer submitted before it samples for the first time? Counts the markers."""
    tags = trainer.tq.kv_list("train").get("train", {}).values()
    truth = sum(bool(tag.get("is_prompt")) for tag in tags)
    size, n = trainer.config.data.train_batch_size, trainer.config.actor_rollout_ref.rollout.n
    wrong = {
        size: "these are the prompts of the step; the warm-up ones come first",
        truth - size: "these are the prompts of the warm-up; the step submits its own, too",
        truth * n: "these are answers: every prompt is answered several times",
        2 * size: "a fraction of a batch counts, too",
        3 * size: "1.5 batches are not rounded up to 2: prompts come one by one here",
    }
    return check_number(answer, truth, wrong, right=f"{truth - size} to run ahead, and {size} of the step")


@dataclass(frozen=True)
class SlowRun:
    """A run with one setting that makes it slow."""

    run: ModeRun
    setting: str

    def check(self, answer: Any) -> Answer:
        """Which setting is it? The time line speaks against the others."""
        if unanswered(answer):
            return open_answer()
        timeline, staleness = self.run.timeline, self.run.staleness
        syncs = sum(span.seconds for span in timeline.of_lane(DRIVER) if span.kind == "sync")
        return check_choice(
            name_of(answer).split("=")[0].split(".")[-1],  # a dotted key, an override: its last name
            self.setting,
            {
                "trainer_mode": (
                    "in sync mode the server is never busy while the trainer computes, and here it is, for "
                    f"{self.run.overlap:.1f} s"
                ),
                "parameter_sync_step": f"the weight syncs take {syncs:.2f} s of {timeline.seconds:.1f} s in all",
                "num_warmup_batches": (
                    "no prompt runs ahead: each step submits its prompts and then waits for them, so the trainer waits "
                    "at the begin of a step, and the server has nothing to do at its end"
                ),
                "max_off_policy_threshold": f"it costs time by throwing groups away: {staleness.evicted:.0f} here",
            },
        )


def slow_run(overrides: Sequence[str], script: Script) -> SlowRun:
    """separate_async, and yet it hardly overlaps."""
    words = [*overrides, "trainer.v1.separate_async.num_warmup_batches=0"]
    return SlowRun(run_mode(words, script, title="slow"), "num_warmup_batches")
