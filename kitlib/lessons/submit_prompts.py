"""Notebook 03: from a row of a data file to a marker in the queue.

check_pass            how many prompts of ten does one pass give, fetched by fours and one by one?
check_marker_fields   which fields are on the marker of a prompt?
readable_uid          give one prompt a uid that a person can read, and lose its group; find it after sampling
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sized
from dataclasses import dataclass, field
from typing import Any

from tensordict import NonTensorStack, TensorDict

from kitlib.inspector.render.wording import count
from kitlib.keys import is_trajectory_key, uid_of
from kitlib.lessons.answers import Answer, mistakes, open_answer, right, unanswered
from kitlib.lessons.plain_checks import check_names, number_mistakes
from kitlib.lessons.reading import name_of
from kitlib.transfer_queue import QueueSnapshot


def check_pass(
    by_four: Any, one_by_one: Any, loader_by_four: Iterable[Any], loader_one_by_one: Iterable[Any]
) -> Answer:
    """How many prompts does one pass over each loader give? Runs through both of them to find out."""
    if unanswered(by_four, one_by_one):
        return open_answer()
    said = []
    for what, answer, loader in (("by fours", by_four, loader_by_four), ("one by one", one_by_one, loader_one_by_one)):
        truth, num_rows, num_fetches = _one_pass(loader)
        names: dict[float, str] = {
            num_rows: "the last fetch would not be full, and a fetch that is not full is dropped",
            num_fetches: "that is the number of fetches; count the prompts in them",
            truth - truth % 4: "that would leave some out: when each fetch takes one prompt, every fetch is full",
            -(-num_rows // 4) * 4: "nothing is filled up with rows of the next pass",
        }
        said += [f"{what}: {text}" for text in number_mistakes(answer, truth, names)]
    if said:
        return mistakes(said)
    return right("a pass by fours drops two prompts of ten, a pass one by one drops none")


def _one_pass(loader: Iterable[Any]) -> tuple[int, int, int]:
    """Prompts of a pass, rows of the dataset, fetches."""
    sizes = [len(batch["index"]) for batch in loader]
    dataset: Sized = loader.dataset  # type: ignore[attr-defined]
    return sum(sizes), len(dataset), len(sizes)


_NOT_ON_A_MARKER = {
    "global_steps": "the step is in the tag, where the sampler reads it without a get",
    "status": "that is in the tag",
    "is_prompt": "that is in the tag",
    "prompts": "these are token ids, written by the agent loop on each row; the marker has `prompt`, the messages",
    "responses": "there is no answer yet",
    "input_ids": "there is no token yet",
    "rm_scores": "there is no answer yet, so nothing to score",
    "response_mask": "there is no answer yet",
    "rollout_log_probs": "there is no answer yet",
    "session_id": "no session has begun; each row of an answer will have it",
    "num_sessions": "that is in the tag, as soon as the agent loop begins",
}


def check_marker_fields(answer: Any, snapshot: QueueSnapshot, uid: str, partition_id: str = "train") -> Answer:
    """Which fields does the marker of `uid` hold?"""
    truth = snapshot.partitions[partition_id].fields_of(uid)
    wrong = _NOT_ON_A_MARKER
    if not truth:  # sync mode
        wrong = dict.fromkeys((*wrong, "prompt", "raw_prompt"), "the markers of sync mode have tags and no field")
    hint = "every column of the batch of prompts that has one value a prompt"
    said = f"{count(len(truth), 'field')}: the whole row of the dataset, and its uid" if truth else "no field at all"
    return check_names(answer, truth, wrong, hint=hint, right=said)


@dataclass
class ReadableUid:
    """A batch of prompts of which one has a uid with an underscore. Submit `prompts` yourself."""

    prompts: TensorDict = field(repr=False)
    uid: str = field(repr=False)

    def reveal(self) -> str:
        """What is wrong, in one sentence."""
        return f"the prompt {self.uid} has a uid with an underscore; the sampler looks for the group {uid_of(self.uid)}"

    def check(self, uid: Any) -> Answer:
        """Is this the prompt whose group was lost?"""
        if unanswered(uid):
            return open_answer()
        text, uids = name_of(uid), self.prompts.get("uid").tolist()
        if text == self.uid:
            return right(self.reveal())
        if not isinstance(uid, str) and text == str(uid):
            return mistakes([f"the answer is one uid, a string, not {text[:60]}"])
        if text == uid_of(self.uid):
            return mistakes([f"{text} is what the sampler takes for the uid; which uid did the prompt really have?"])
        if is_trajectory_key(text) or text.startswith(f"{self.uid}_"):
            return mistakes(
                [f"{text} is the key of a row: take the session and the index away, two numbers at the end"]
            )
        if self.uid.startswith(text) and text:
            return mistakes([f"{text} is only how it begins: write down the whole uid"])
        if any(one.startswith(text) for one in uids) and text:
            return mistakes([f"{text} is healthy: its rows are in the batch"])
        return mistakes([f"no prompt of this batch has the uid {text!r}: look at the keys that are left in the queue"])


def readable_uid(prompts: TensorDict, seed: int = 0) -> ReadableUid:
    """One of the prompts gets the uid `{task}_{index}`, in place, which a person can read."""
    uids, number = prompts.get("uid").tolist(), random.Random(seed).randrange(len(prompts))
    task = prompts.get("data_source").tolist()[number].rsplit("/")[-1]
    uids[number] = f"{task}_{prompts.get('index').tolist()[number]}"
    prompts["uid"] = NonTensorStack(*uids)
    return ReadableUid(prompts, uids[number])
