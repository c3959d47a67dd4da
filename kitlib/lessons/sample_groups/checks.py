"""Checks of predictions about sampling; the truth comes from the queue and from the sampler's own rules."""

from __future__ import annotations

from typing import Any

from kitlib.inspector.render.wording import count, joined
from kitlib.keys import is_trajectory_key, uid_of
from kitlib.lessons.answers import Answer, mistakes, open_answer, right, unanswered
from kitlib.lessons.reading import name_of, names_of, whole_number_of, yes_or_no_of
from kitlib.replay_buffer import PartitionView, ReplayBuffer, WaitReport
from kitlib.replay_buffer.buffer import SyncRefill
from kitlib.replay_buffer.lookout import fresh_view
from kitlib.transfer_queue import QueueProtocol


def check_sampled(answer: Any, tq: QueueProtocol, batch_size: int, partition_id: str = "train") -> Answer:
    """Which prompts does a plain `sample` of that size take now? `answer` is a set or list of uids."""
    if unanswered(answer):
        return open_answer()
    said = names_of(answer)
    if said is None:
        return mistakes([f'the answer is a set of uids, such as {{"u1", "u2"}}, not {answer!r}'])
    view = fresh_view(tq, partition_id)
    taken = set(view.oldest(batch_size))
    wrong = [_why_not_taken(uid, view) for uid in sorted(said - taken)]
    if len(said) != batch_size:
        wrong.append(f"{count(len(said), 'group')} instead of {batch_size}: batch_size counts prompts, not rows")
    wrong += dict.fromkeys(_why_taken(uid, view) for uid in sorted(taken - said))
    if wrong:
        return mistakes(wrong)
    return right(f"{joined(sorted(taken))}: the oldest of {count(len(view.terminal), 'settled prompt')}")


def _why_not_taken(uid: str, view: PartitionView) -> str:
    if is_trajectory_key(uid):
        return f"{uid} is the key of a row: name the whole group by its uid, {uid_of(uid)}"
    if uid in view.in_flight:
        return f"{uid} is in flight: however old it is, only a settled prompt (finished, failure) can be taken"
    if uid in view.terminal:
        older = [other for other, step in view.terminal.items() if step < view.terminal[uid]]
        return f"{uid} is settled, but {count(len(older), 'settled prompt')} were submitted at an earlier step"
    return f"{uid} has no marker here"


def _why_taken(uid: str, view: PartitionView) -> str:
    if uid in view.prompts["failure"]:
        return "a failed prompt is settled, too: it is taken with the rows that it has"
    return f"a prompt of step {view.terminal[uid]} is missing from your answer"


def check_refill(answer: Any, buffer: ReplayBuffer, global_steps: int, batch_size: int) -> Answer:
    """How many prompts does the first look of `sample` (sync, groups filtered) submit anew? Evicts nothing itself."""
    if unanswered(answer):
        return open_answer()
    said = whole_number_of(answer)
    if said is None:
        return mistakes([f"the answer is a whole number, not {answer!r}"])
    view = fresh_view(buffer.tq, "train")
    evictions = buffer.evictions(global_steps, view)
    view.forget(evictions.uids)
    enough = len(view.terminal) >= batch_size
    truth = SyncRefill(buffer).num_to_dispatch(view, evictions, enough)
    if said == truth:
        evicted = count(len(evictions.uids), "group")
        return right(f"{evicted} evicted, {len(view.terminal)} of {batch_size} left, so {truth} prompts are submitted")
    return mistakes(_why_not_refilled(said, truth, buffer, len(evictions.constant), batch_size - len(view.terminal)))


def _why_not_refilled(said: int, truth: int, buffer: ReplayBuffer, num_constant: int, num_lacking: int) -> list[str]:
    capacity = buffer.max_inflight_gen_batches * (buffer.train_batch_size or 0)
    texts = [
        (num_constant, "one for one is the rule of the async modes; sync asks for two for each evicted group"),
        (num_lacking, "the sampler does not ask how many groups are lacking, it counts what it has evicted"),
        (2 * num_constant, f"that is the credit, and no more than {capacity} prompts may be in flight at a time"),
        (2 * num_constant - truth, "that is the credit which is left afterwards"),
        (0, "groups are replaced by the same look that evicts them"),
    ]
    how = "count the groups whose rewards are all equal, double, and mind the bound on what is in flight"
    return [f"not {said}: {text}" for number, text in texts if number == said] or [f"not {said}: {how}"]


def check_wait(will_end: Any, uid: Any, report: WaitReport) -> Answer:
    """Will this wait end by itself (True or False), and which prompt in flight does it hang on?"""
    if unanswered(will_end, uid):
        return open_answer()
    hangs_on, ends = name_of(uid), yes_or_no_of(will_end)
    wrong = []
    if hangs_on not in [prompt.uid for prompt in report.blocking]:
        wrong.append(_why_not_blocking(hangs_on))
    if ends is None:
        wrong.append(f"will_end is True or False, not {will_end!r}")
    elif ends and not report.can_end:
        wrong.append("it will not end: no task of that prompt is running, so nobody is left to write its status")
    elif report.can_end and not ends:
        wrong.append("it will end: a task of that prompt is running, so its rows are on their way")
    return mistakes(wrong) if wrong else right(f"{hangs_on}: {report.verdict}")


def _why_not_blocking(uid: str) -> str:
    if is_trajectory_key(uid):
        return f"{uid} is the key of a row: name the prompt by its uid, {uid_of(uid)}"
    return f"{uid} is not in flight: the wait hangs on a prompt that is pending or running"
