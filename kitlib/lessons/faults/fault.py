"""`Fault`: what was planted, how a finding is checked, and the way back.

`print(fault)` does not give it away; `fault.reveal()` does. Which row it hits follows from the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kitlib.errors import KitError
from kitlib.inspector.render.wording import joined
from kitlib.lessons.answers import Answer, mistakes, open_answer, right, unanswered
from kitlib.transfer_queue import KVBatchMeta, QueueProtocol, take_snapshot

Judge = Callable[[Any], list[str]]  # the mistakes in one part of an answer; none: it is right
Saved = dict[tuple[str, str], tuple[dict[str, Any] | None, Any]]  # (partition, key) -> tag and row, None if not there


class FaultError(KitError):
    """A fault that this queue has no place for."""


@dataclass
class Fault:
    """One planted fault.

    tq:     the queue it is in.
    says:   what was done, in one sentence.
    kind:   the word under which `doctor` finds it, None if it has no rule for it.
    truth:  what there is to find, by name: {"key": .., "field": ..}. Names in the order of `check`.
    judges: for each of them, who says what is wrong with an answer.
    saved:  everything that was touched, as it was before.
    batch:  the handle to go on with, where the fault changes it.
    """

    tq: QueueProtocol = field(repr=False)
    says: str = field(repr=False)
    kind: str | None = field(repr=False)
    truth: dict[str, Any] = field(repr=False)
    judges: dict[str, Judge] = field(repr=False)
    saved: Saved = field(repr=False)
    batch: KVBatchMeta | None = field(default=None, repr=False)

    def reveal(self) -> str:
        """What was done, in one sentence."""
        return self.says

    @property
    def key(self) -> str:
        """The row that it hits."""
        return self.truth["key"]

    def mend(self) -> None:
        """Put everything back as it was; the keys move to the end of their partition's list."""
        listed = self.tq.kv_list()
        for (partition_id, key), (tag, row) in self.saved.items():
            if key in listed.get(partition_id, {}):
                self.tq.kv_clear(keys=[key], partition_id=partition_id)
            if tag is not None:
                self.tq.kv_batch_put(keys=[key], partition_id=partition_id, fields=row, tags=[tag])

    def check(self, *answers: Any, **named: Any) -> Answer:
        """Is this what was planted? Give what `truth` names, in that order or by name: `check(key, field)`.

        Keys and uids may be as short as in the views; blanks around a name do not matter.
        """
        given = dict(zip(self.truth, answers, strict=False)) | named
        said = {name: _trimmed(answer) for name, answer in given.items() if answer is not None}
        if unanswered(*said.values()):
            return open_answer()
        strange = [name for name in said if name not in self.truth]
        if strange or len(answers) > len(self.truth):
            return mistakes([f"this fault is found by {joined(list(self.truth))}"])
        if missing := [name for name in self.truth if name not in said]:
            alone = f"a {joined(list(said))} alone" if said else "nothing"
            return mistakes([f"{alone} is half of the answer: pass {joined(missing)}, too"])
        wrong = [sentence for name, judge in self.judges.items() for sentence in judge(said[name])]
        return mistakes(wrong) if wrong else right(self.reveal())


def _trimmed(answer: Any) -> Any:
    return answer.strip() if isinstance(answer, str) else answer


def save(tq: QueueProtocol, partition_id: str, keys: Sequence[str]) -> Saved:
    """Tag and row of these keys as they are now; nothing of a key that is not there."""
    tags = tq.kv_list(partition_id).get(partition_id, {})
    partition = take_snapshot(tq).partitions.get(partition_id)
    saved: Saved = {}
    for key in keys:
        has_fields = partition is not None and key in tags and partition.fields_of(key)
        row = tq.kv_batch_get([key], partition_id) if has_fields else None
        saved[partition_id, key] = (tags.get(key), row)
    return saved


def there(saved: Saved, partition_id: str, key: str) -> tuple[dict[str, Any], Any]:
    """Tag and row of a key that was in the queue. FaultError if it was not."""
    tag, row = saved[partition_id, key]
    if tag is None:
        raise FaultError(f"{partition_id} has no key {key}: the handle is older than the queue")
    return tag, row
