"""The replay buffer: which finished groups become the next batch.

verl 0.9.1: trainer/ppo/v1/replay_buffer.py. It holds no data: it reads keys and tags from the queue and answers with a
KVBatchMeta, the names of the rows that the trainer shall use.

    prompts.py       what one look at a partition sees: prompts by status, rows
    lookout.py       one look after the other, each at what changed
    group_filter.py  groups whose trajectories all score the same (DAPO)
    evictions.py     what is thrown out, why, and its metrics
    buffer.py        ReplayBuffer: waits for what was submitted
    async_buffer.py  ReplayBufferAsync: generation runs ahead
    waiting.py       the wait, and what it waits for

In the partition `train`, k groups to evict:

    trainer mode    stale (drop)    constant (filter_groups)    failed
    sync            nothing         evict k, credit 2k          kept; or evict k, refill k
    async           evict k, refill k for all three, each group once

In `val` nothing is evicted: finished and failed groups are both sampled.

Differs from verl: `sample` wakes up when the queue changes, ends with the original exception when a background task has
died, and ends with an explanation when nothing in flight could still complete the batch.
"""

from kitlib.replay_buffer.async_buffer import ReplayBufferAsync
from kitlib.replay_buffer.buffer import ReplayBuffer
from kitlib.replay_buffer.errors import MarkerTagError, SampleError, SamplerArgumentError, UnknownStatusError
from kitlib.replay_buffer.evictions import FILTERED_REWARD_COUNTS, Evictions
from kitlib.replay_buffer.prompts import STATUSES, PartitionView
from kitlib.replay_buffer.waiting import WaitReport

__all__ = [
    "FILTERED_REWARD_COUNTS",
    "STATUSES",
    "Evictions",
    "MarkerTagError",
    "PartitionView",
    "ReplayBuffer",
    "ReplayBufferAsync",
    "SampleError",
    "SamplerArgumentError",
    "UnknownStatusError",
    "WaitReport",
]
