"""Something broken to find: plant a fault in a queue, check what a reader has found, take it back.

    fault = lose_field(tq, batch)               the row of one key comes back without one of its fields
    fault = misplace_row(tq, batch)             the row of one key lies in another partition
    fault.check(key=..., field=...)             says what is wrong with a finding
    fault.mend()                                as it was

`print(fault)` does not give the fault away; `fault.reveal()` does. Which row it hits follows from `seed`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from kitlib.inspector.names import ShortNames
from kitlib.keys import is_trajectory_key
from kitlib.lessons.answers import Answer, mistakes, open_answer, right, unanswered
from kitlib.transfer_queue import KVBatchMeta, QueueProtocol, explain_get, take_snapshot

FIELDS_TO_LOSE = ("rm_scores", "response_mask", "rollout_log_probs")


@dataclass
class Fault:
    """One fault in one row. `lost` is the field that was taken away, None if the row was moved to `elsewhere`."""

    tq: QueueProtocol = field(repr=False)
    home: str = field(repr=False)  # the partition where the row belongs
    key: str = field(repr=False)
    lost: str | None = field(default=None, repr=False)
    elsewhere: str | None = field(default=None, repr=False)
    row: Any = field(default=None, repr=False)  # the whole row, TensorDict [1]
    tag: dict[str, Any] = field(default_factory=dict, repr=False)

    def reveal(self) -> str:
        """What was done, in one sentence."""
        what = f"lost the field {self.lost!r}" if self.lost else f"lies in partition {self.elsewhere!r}"
        return f"{self.key} {what}"

    def mend(self) -> None:
        """Put the row back as it was; its key moves to the end of the partition's list."""
        if self.elsewhere is not None:
            self.tq.kv_clear(keys=[self.key], partition_id=self.elsewhere)
        self.tq.kv_batch_put(keys=[self.key], partition_id=self.home, fields=self.row, tags=[self.tag])

    def check(self, key: Any, field: Any = None, partition_id: Any = None) -> Answer:
        """Is this the row, and is this what it lost or where it lies? `key` may be short: the first characters."""
        about = field if self.lost else partition_id
        if unanswered(key, field, partition_id):
            return open_answer()
        if about is None:
            return mistakes(
                [f"a key alone is half of the answer: pass {'field' if self.lost else 'partition_id'}, too"]
            )
        wrong = self._wrong_key(str(key)) + (self._wrong_field(about) if self.lost else self._wrong_partition(about))
        return mistakes(wrong) if wrong else right(self.reveal())

    def _wrong_key(self, said: str) -> list[str]:
        known = [key for keys in self.tq.kv_list().values() for key in keys]
        if said in (self.key, ShortNames(known).key(self.key)):
            return []
        meant = [key for key in known if key == said or ShortNames(known).key(key) == said]
        if not meant:
            return [f"no partition has a key {said!r}: a key is {{uid}}_{{session_id}}_{{index}}"]
        if not is_trajectory_key(meant[0]):
            return [f"{said} is a prompt marker: it has tags and no fields, and that is as it should be"]
        return [f"{said} is a healthy row: it has every field that the others have, in the partition of the others"]

    def _wrong_field(self, said: str) -> list[str]:
        if said == self.lost:
            return []
        fields = take_snapshot(self.tq).partitions[self.home].fields
        if said not in fields:
            return [f"no row has {said!r}: a field that nobody has is not due yet, or misspelt"]
        lacking = explain_get(self.tq, [self.key], [said], self.home).missing_cells
        return [f"{said} is on the row, too"] if not lacking else [f"the row lost another field than {said}"]

    def _wrong_partition(self, said: str) -> list[str]:
        if said == self.elsewhere:
            return []
        if said == self.home:
            return [
                f"{said} is where the row belongs, and a get from there does not find it: where does kv_list see it?"
            ]
        return [f"there is no partition {said!r}: kv_list() names them all"]


def lose_field(tq: QueueProtocol, batch: KVBatchMeta, seed: int = 0, fields: tuple[str, ...] = FIELDS_TO_LOSE) -> Fault:
    """One row of the batch loses one of `fields`. The handle stays as it is: it knows nothing of it."""
    fault = _take_out(tq, batch, seed)
    fault.lost = random.Random(seed).choice([name for name in fields if name in fault.row])
    rest = fault.row.exclude(fault.lost)
    tq.kv_batch_put(keys=[fault.key], partition_id=fault.home, fields=rest, tags=[fault.tag])
    return fault


def misplace_row(tq: QueueProtocol, batch: KVBatchMeta, seed: int = 0, elsewhere: str = "val") -> Fault:
    """One row of the batch moves to another partition, as if a put had named the wrong one."""
    fault = _take_out(tq, batch, seed)
    fault.elsewhere = elsewhere
    tq.kv_batch_put(keys=[fault.key], partition_id=elsewhere, fields=fault.row, tags=[fault.tag])
    return fault


def _take_out(tq: QueueProtocol, batch: KVBatchMeta, seed: int) -> Fault:
    """Copy one row of the batch with its tag and clear it."""
    assert batch.partition_id is not None, "the batch names no partition"
    key = batch.keys[random.Random(seed).randrange(len(batch.keys))]
    fault = Fault(tq, batch.partition_id, key)
    fault.row = tq.kv_batch_get([key], batch.partition_id)
    fault.tag = tq.kv_list(batch.partition_id)[batch.partition_id][key]
    tq.kv_clear(keys=[key], partition_id=batch.partition_id)
    return fault
