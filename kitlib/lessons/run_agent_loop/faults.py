"""Two things to find: sessions that died, and a mask that covers the tool.

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

from kitlib.inspector.render.wording import count
from kitlib.lessons.answers import Answer, mistakes, open_answer, right, unanswered
from kitlib.lessons.faults.fault import Fault, FaultError, Judge, save
from kitlib.lessons.faults.fields import rows_of
from kitlib.lessons.faults.judges import one_key
from kitlib.lessons.reading import meant_by, name_of, number_of, plain_number
from kitlib.lessons.run_agent_loop.loops import mortal, send_to
from kitlib.transfer_queue import KVBatchMeta, QueueProtocol
from kitlib.workers.bridge import partition_of


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
        return mistakes([wrong]) if wrong else right(self.reveal())

    def reveal(self) -> str:
        """What was done, in one sentence."""
        return f"session {self.session_id} of {self.uid} left no row"

    def _wrong_uid(self, said: str) -> str:
        meant = meant_by(said, self.prompts.get("uid").tolist())
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


def train_the_tool(tq: QueueProtocol, batch: KVBatchMeta, seed: int = 0) -> Fault:
    """In one row that has a tool turn, overwrite response_mask with ones. Its copy, loss_mask, stays as it is.

    To find: key, and num_tokens, the tool tokens that would be trained. The row is one of the shorter half, so that a
    view of its tokens fits on a screen. FaultError if no tool has written in the batch.
    """
    home = partition_of(batch)
    masks = {key: mask for key, mask in rows_of(tq, batch, "response_mask").items() if not mask.all()}
    with_tool = sorted(masks, key=lambda key: len(masks[key]))
    if not with_tool:
        raise FaultError("no row of the batch has a 0 in its response_mask: no tool has written in it")
    key = random.Random(seed).choice(with_tool[: (len(with_tool) + 1) // 2])
    mask, saved = masks[key], save(tq, home, [key])
    tq.kv_put(key, home, fields={"response_mask": torch.ones_like(mask)})
    truth = {"key": key, "num_tokens": int((mask == 0).sum())}
    healthy = "its mask is 0 where a tool wrote; a model that answers at once has written every token itself"
    judges = {"key": one_key(tq, key, healthy), "num_tokens": _tool_tokens(mask)}
    says = f"{key}: the mask has 1 on {truth['num_tokens']} tool tokens"
    return Fault(tq, says, None, truth, judges, saved)


def _tool_tokens(mask: Tensor) -> Judge:
    """The number of zeros in the right mask, int64 [R]."""
    response_len, num_written = len(mask), int(mask.sum())

    def judge(said: Any) -> list[str]:
        number = number_of(said)
        if number is None:
            return [f"the number of tokens is a number, not {said!r}"]
        if number == response_len - num_written:
            return []
        if number == response_len:
            return [f"{number} is the length of the response; a part of it is the model's own, and may be trained"]
        if number == num_written:
            return [f"{number} tokens are the model's own: count the others"]
        return [f"not {number}: count the tokens whose response_mask is 1 and should be 0"]

    return judge
