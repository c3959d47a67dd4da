"""Mutations under which 05_sample_groups must fail."""

from __future__ import annotations


def the_newest_prompts_are_taken() -> None:
    """`sample` prefers what was submitted last."""
    from kitlib.replay_buffer import PartitionView

    PartitionView.oldest = lambda self, num_prompts: sorted(
        self.terminal, key=lambda uid: (-self.terminal[uid], self._place[uid])
    )[:num_prompts]


def evicted_groups_are_replaced_one_for_one() -> None:
    """Sync group filtering gives one credit for an evicted group instead of two."""
    from kitlib.replay_buffer.buffer import SyncRefill

    SyncRefill.num_to_dispatch = lambda self, view, evicted, enough: 0 if enough else len(evicted.constant)


def every_wait_is_called_slow() -> None:
    """A wait for a prompt without a running task is said to end by itself."""
    from kitlib.replay_buffer import waiting

    waiting._verdict = lambda waiting, view, blocking, ready: (True, "Yes, it is slow.")
