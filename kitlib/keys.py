"""The grammar of keys: what a name in the queue says about the row behind it.

verl 0.9.1: trainer/ppo/v1/agent_loop_tq.py, AgentLoopWorkerTQ._agent_loop_postprocess (writes keys) and
trainer/ppo/v1/replay_buffer.py, ReplayBuffer (reads them).

    prompt marker    {uid}                         one a prompt, tags only; removed when its group is sampled
    trajectory       {uid}_{session_id}_{index}    session_id in [0, n): which of the n samples of the prompt
                                                   index: which output of that session (0 for a simple agent)
    padding row      pad{hex}_{i}_0                a trajectory key whose uid says that it is no real row

All trajectories of one uid form one GRPO group. The sampler finds the group of a row by cutting its key at the first
underscore, so a uid must not contain one: `uid_of("a_b_0_0")` is "a", and the group "a_b" would never be found.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass

from kitlib.errors import KitError

_TRAJECTORY = re.compile(r"(?P<uid>[^_]+)_(?P<session_id>\d+)_(?P<index>\d+)")


class KeyGrammarError(KitError, ValueError):
    """A key that is not `{uid}_{session_id}_{index}`."""


@dataclass(frozen=True, slots=True, order=True)
class TrajectoryKey:
    """The parsed form of a trajectory key; `str()` gives the key back."""

    uid: str
    session_id: int
    index: int

    def __str__(self) -> str:
        return f"{self.uid}_{self.session_id}_{self.index}"

    @classmethod
    def parse(cls, key: str) -> TrajectoryKey:
        """Split `{uid}_{session_id}_{index}`. Raises KeyGrammarError naming the key and what is wrong with it."""
        match = _TRAJECTORY.fullmatch(key)
        if match is None:
            raise KeyGrammarError(
                f"{key!r} is not a trajectory key: expected {{uid}}_{{session_id}}_{{index}} with two whole numbers at "
                "the end and no underscore in the uid"
            )
        return cls(match["uid"], int(match["session_id"]), int(match["index"]))


def is_trajectory_key(key: str) -> bool:
    """True for `{uid}_{session_id}_{index}`; False for a prompt marker or anything else."""
    return _TRAJECTORY.fullmatch(key) is not None


def uid_of(key: str) -> str:
    """The group of a key as the sampler sees it: everything before the first underscore."""
    return key.split("_", 1)[0]


def new_uid() -> str:
    """A fresh prompt uid: a random UUID, which has dashes and no underscore."""
    return str(uuid.uuid4())
