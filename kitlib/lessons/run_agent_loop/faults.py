"""Two things to find: a session that died, and a mask that covers the tool.

    fault = kill_sessions(prompts, seed=7)      one prompt will lose a session, another one all of them
    trainer.submit_batch_to_rollout(fault.prompts)
    fault.check(uid, session_id)

    fault = train_the_tool(tq, batch)           in one row the mask has only ones
    fault.check(key, num_tokens)
    fault.mend()

Neither object gives its secret away when it is printed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from kitlib.inspector.names import ShortNames
from kitlib.inspector.render.wording import count
from kitlib.keys import is_trajectory_key
from kitlib.lessons.answers import Answer, mistakes, open_answer, right, unanswered
from kitlib.lessons.expect import LessonError
from kitlib.lessons.plain_checks import name_of, plain_number
from kitlib.lessons.run_agent_loop.loops import mortal, send_to
from kitlib.transfer_queue import KVBatchMeta, QueueProtocol


@dataclass
class KilledSessions:
    """`prompts` carry the fault: submit them. `uid` loses `session_id`, `lost_uid` loses all of its sessions."""

    prompts: TensorDict = field(repr=False)
    uid: str = field(repr=False)
    session_id: int = field(repr=False)
    lost_uid: str = field(repr=False)
    num_sessions: int = field(repr=False)

    def check(self, uid: Any, session_id: Any) -> Answer:
        """Is this the one session that died alone? The first characters of the uid are enough."""
        if unanswered(uid, session_id):
            return open_answer()
        wrong = self._wrong_uid(name_of(uid)) or self._wrong_session(plain_number(session_id))
        return mistakes([wrong]) if wrong else right(f"session {self.session_id} of {self.uid} left no row")

    def _wrong_uid(self, said: str) -> str:
        uids = self.prompts.get("uid").tolist()
        meant = [uid for uid in uids if said and uid.startswith(said)]
        if meant == [self.uid]:
            return ""
        if len(meant) > 1:
            return f"{said!r} is short for {count(len(meant), 'uid')}: write some more characters of it"
        if not meant:
            return f"no prompt has the uid {said!r}: a uid is the part of a key before the first underscore"
        if meant == [self.lost_uid]:
            return f"{said} is a failure, too, but it lost all {self.num_sessions} sessions: which other lost one?"
        return f"{said} is finished: each of its sessions has a row"

    def _wrong_session(self, said: Any) -> str:
        if isinstance(said, bool) or said not in range(self.num_sessions):
            return f"a session is a whole number from 0 to {self.num_sessions - 1}, not {said!r}"
        if said == self.session_id:
            return ""
        return f"session {said} of that prompt has a row: which number is missing among its keys?"


def kill_sessions(prompts: TensorDict, num_sessions: int, seed: int = 0) -> KilledSessions:
    """Of two prompts, one will lose a session and one will lose all of them. The others stay healthy."""
    rng = random.Random(seed)
    one, all_of_them = rng.sample(range(len(prompts)), 2)
    session_id = rng.randrange(num_sessions)
    names = prompts.get("agent_name").tolist()
    names[one], names[all_of_them] = mortal([session_id]), mortal(range(num_sessions))
    uids = prompts.get("uid").tolist()
    return KilledSessions(send_to(prompts, names), uids[one], session_id, uids[all_of_them], num_sessions)


@dataclass
class WrongMask:
    """One row whose response_mask says that the model wrote everything. `right_mask`: int64 [R]."""

    tq: QueueProtocol = field(repr=False)
    partition_id: str = field(repr=False)
    key: str = field(repr=False)
    right_mask: Tensor = field(repr=False)

    @property
    def num_tokens(self) -> int:
        """Tokens that would be trained although a tool wrote them."""
        return int((self.right_mask == 0).sum())

    def mend(self) -> None:
        """The mask as it was."""
        self.tq.kv_put(self.key, self.partition_id, fields={"response_mask": self.right_mask})

    def check(self, key: Any, num_tokens: Any) -> Answer:
        """Is this the row, and is this the number of tool tokens that would be trained? `key` may be short."""
        if unanswered(key, num_tokens):
            return open_answer()
        wrong = self._wrong_key(name_of(key)) or self._wrong_number(plain_number(num_tokens))
        return mistakes([wrong]) if wrong else right(f"{self.key}: the mask has 1 on {self.num_tokens} tool tokens")

    def _wrong_key(self, said: str) -> str:
        listing = self.tq.kv_list()
        names = ShortNames(key for part in listing.values() for key in part)
        meant = [key for key in listing[self.partition_id] if said in (key, names.key(key))]
        if meant == [self.key]:
            return ""
        if not meant:
            return f"{self.partition_id} has no key {said!r}: a key is {{uid}}_{{session_id}}_{{index}}"
        if not is_trajectory_key(meant[0]):
            return f"{said} is a prompt marker: it has no mask"
        row = self.tq.kv_batch_get(meant, self.partition_id, ["num_turns"])[0]
        if row["num_turns"] == 2:
            return f"{said} is healthy: the model answered at once, so it really wrote every token"
        return f"{said} is healthy: its mask is 0 where a tool wrote"

    def _wrong_number(self, said: Any) -> str:
        response_len, num_written = len(self.right_mask), int(self.right_mask.sum())
        if isinstance(said, bool) or not isinstance(said, int | float):
            return f"the number of tokens is a number, not {said!r}"
        if said == self.num_tokens:
            return ""
        if said == response_len:
            return f"{said} is the length of the response; a part of it is the model's own, and may be trained"
        if said == num_written:
            return f"{said} tokens are the model's own: count the others"
        return f"not {said}: count the tokens whose response_mask is 1 and should be 0"


def train_the_tool(tq: QueueProtocol, batch: KVBatchMeta, seed: int = 0) -> WrongMask:
    """In one row that has a tool turn, overwrite response_mask with ones. Its copy, loss_mask, stays as it is.

    The row is one of the shorter half, so that a view of its tokens fits on a screen.
    """
    assert batch.partition_id is not None, "the batch names no partition"
    masks = tq.kv_batch_get(list(batch.keys), batch.partition_id, ["response_mask"])["response_mask"].unbind()
    with_tool = sorted((i for i, mask in enumerate(masks) if not mask.all()), key=lambda i: len(masks[i]))
    if not with_tool:
        raise LessonError("no row of the batch has a 0 in its response_mask: no tool has written in it")
    chosen = random.Random(seed).choice(with_tool[: (len(with_tool) + 1) // 2])
    fault = WrongMask(tq, batch.partition_id, batch.keys[chosen], masks[chosen])
    tq.kv_put(fault.key, fault.partition_id, fields={"response_mask": torch.ones_like(masks[chosen])})
    return fault
