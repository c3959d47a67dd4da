"""ReplayBuffer: samples whole groups synchronously; what was submitted for this step is waited for.

verl 0.9.1: trainer/ppo/v1/replay_buffer.py, ReplayBuffer.

With group filtering (algorithm.filter_groups) the sync buffer fetches more prompts while it waits:

    evict k constant groups  ──>  credit += 2k (and += 1 for each failed group to replace)
    credit > 0               ──>  refill as many as fit into max_inflight_gen_batches * train_batch_size
    enough groups            ──>  draining: no new prompts; wait until nothing is in flight (same weights for all),
                                  take the oldest, discard the surplus
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kitlib.replay_buffer.errors import SampleError, SamplerArgumentError
from kitlib.replay_buffer.evictions import EvictionMetrics, Evictions
from kitlib.replay_buffer.group_filter import GroupFilter
from kitlib.replay_buffer.lookout import Lookout, fresh_view
from kitlib.replay_buffer.prompts import PartitionView
from kitlib.replay_buffer.waiting import Waiting, WaitReport, explain_wait
from kitlib.transfer_queue import KVBatchMeta, QueueProtocol

RefillFn = Callable[[int], Any]


class ReplayBuffer:
    """Chooses the rows of the next batch by their tags; holds no data.

    Args:
        tq: the queue.
        trainer_mode: sync, colocate_async or separate_async; for messages.
        trainer_config: the group `trainer.v1.<trainer_mode>`; custom samplers may read it.
        max_off_policy_threshold: weight versions a prompt may span (async). None: no limit.
        max_off_policy_strategy: "drop" evicts a finished group beyond the threshold, "wait" holds sampling back while a
            prompt in flight has reached it (async).
        sampler_kwargs: `trainer.v1.sampler.sampler_kwargs`; custom samplers may read it.
        poll_interval: seconds; the longest time between two looks at the queue if no change is signalled.
        refill_fn: submits exactly that many fresh prompts.
        filter_groups_metric: "reward" or a name of reward_extra_info; None: groups are not filtered.
        train_batch_size, max_inflight_gen_batches: bound on prompts in flight while groups are filtered (sync).
        gen_batch_size: prompts a dataloader fetch; refills are whole multiples.
        sync_refill_failed_groups: replace groups of which no session left a row (sync).
        raise_if_failed: called at every look; raises when a background task of the rollout has died.
        live_uids: uids of prompts that have a running task; lets why_waiting tell slow from dead.
        give_up_after: seconds without any change, with nothing in flight, after which waiting is an error.

    Raises SamplerArgumentError for a setting that makes no sense.
    """

    def __init__(
        self,
        tq: QueueProtocol,
        trainer_mode: str = "sync",
        trainer_config: Any = None,
        max_off_policy_threshold: int | None = None,
        max_off_policy_strategy: str = "drop",
        sampler_kwargs: Any = None,
        poll_interval: float = 2.0,
        refill_fn: RefillFn | None = None,
        filter_groups_metric: str | None = None,
        train_batch_size: int | None = None,
        gen_batch_size: int | None = None,
        max_inflight_gen_batches: int = 1,
        sync_refill_failed_groups: bool = False,
        raise_if_failed: Callable[[], None] | None = None,
        live_uids: Callable[[], set[str]] | None = None,
        give_up_after: float = 10.0,
    ) -> None:
        self.tq = tq
        self.trainer_mode = trainer_mode
        self.trainer_config = trainer_config
        self.max_off_policy_threshold = max_off_policy_threshold
        self.max_off_policy_strategy = max_off_policy_strategy
        self.sampler_kwargs = sampler_kwargs
        self.poll_interval = poll_interval
        self.refill_fn = refill_fn
        self.filter_groups_metric = filter_groups_metric
        self.train_batch_size = train_batch_size
        self.gen_batch_size = gen_batch_size
        self.max_inflight_gen_batches = max_inflight_gen_batches
        self.sync_refill_failed_groups = sync_refill_failed_groups
        self.raise_if_failed = raise_if_failed or (lambda: None)
        self.live_uids = live_uids
        self.give_up_after = give_up_after
        self._filter = GroupFilter(tq, filter_groups_metric) if filter_groups_metric is not None else None
        self._lookout = Lookout(tq)
        self._waiting: Waiting | None = None
        self._check_arguments()

    # What readers call

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        """Wait for `batch_size` settled prompts of a partition and take the oldest.

        Args:
            global_steps: the trainer's current step.
            partition_id: "train" or "val"; in `val` nothing is ever evicted.
            batch_size: number of prompts (groups), not of rows.

        Returns:
            The handle of all their rows (`fields=None`) in order of first write, and the eviction metrics.

        Raises:
            SampleError: the chosen prompts have no row at all, or nothing in flight could still complete the batch.
        """
        filtering = self._filter is not None and partition_id != "val"
        refill = SyncRefill(self)
        metrics = EvictionMetrics(partition_id)
        with self._wait_for(global_steps, partition_id, batch_size) as waiting:
            while True:
                view, evicted = self._look_and_evict(global_steps, partition_id, metrics)
                enough = len(view.terminal) >= batch_size
                if not filtering and evicted.failed and not enough:
                    self._refill(len(evicted.failed))
                    continue
                if filtering and self._refill(refill.num_to_dispatch(view, evicted, enough)):
                    continue
                if enough and not (filtering and view.in_flight):
                    break
                waiting.wait()
        uids = view.oldest(batch_size)
        if filtering:
            surplus = view.terminal.keys() - set(uids)
            self._clear(view, surplus)
            metrics.add_surplus(len(surplus))
        return self._materialize(view, uids), metrics.result()

    def why_waiting(self) -> WaitReport | None:
        """What `sample` is waiting for right now, and whether it can still end; None while nobody waits.

        May be called from another thread.
        """
        waiting = self._waiting
        if waiting is None:
            return None
        return explain_wait(waiting, lambda: fresh_view(self.tq, waiting.partition_id), self.live_uids)

    def view(self, partition_id: str) -> PartitionView:
        """Prompts and rows of a partition as they are now; for the thread that samples, and until its next look."""
        return self._lookout.look(partition_id)

    # Evictions

    def evictions(self, global_steps: int, view: PartitionView) -> Evictions:
        """What has to go before sampling from this view: constant groups, and failed ones if they are replaced."""
        if view.partition_id == "val":
            return Evictions()
        failed: frozenset[str] = frozenset()
        if self.sync_refill_failed_groups:
            failed = frozenset(uid for uid in view.prompts["failure"] if not view.keys_of([uid]))
        return Evictions(constant=self._constant_groups(view), failed=failed)

    def _constant_groups(self, view: PartitionView) -> dict[str, float]:
        return self._filter.constant_groups(view) if self._filter is not None else {}

    def held_back_by(self, global_steps: int, view: PartitionView) -> list[str]:
        """Prompts in flight that must finish before anything is sampled; none in sync mode."""
        return []

    def _look_and_evict(
        self, global_steps: int, partition_id: str, metrics: EvictionMetrics
    ) -> tuple[PartitionView, Evictions]:
        """One look; what it finds to evict leaves queue, view and all later decisions."""
        view = self.view(partition_id)
        evictions = self.evictions(global_steps, view)
        self._clear(view, evictions.uids)
        metrics.add(evictions)
        return view, evictions

    def _clear(self, view: PartitionView, uids: set[str]) -> None:
        if uids:
            keys = [*uids, *view.keys_of(uids)]
            self.tq.kv_clear(keys=keys, partition_id=view.partition_id)
            view.forget(keys)

    def _refill(self, num_prompts: int) -> int:
        if num_prompts and self.refill_fn is not None:
            self.refill_fn(num_prompts)
        return num_prompts

    # Choice

    def _materialize(self, view: PartitionView, uids: list[str]) -> KVBatchMeta:
        """Clear the markers and name the rows. The order of rows is the queue's, not that of the prompts."""
        keys = view.keys_of(uids)
        if not keys and view.partition_id != "val":
            chosen = "1 chosen prompt has" if len(uids) == 1 else f"{len(uids)} chosen prompts have"
            raise SampleError(
                f"the {chosen} no trajectory row in partition {view.partition_id!r} "
                f"({view.counts()}; {len(view.rows)} other rows there): every session failed or stored nothing. The "
                "log of the agent loop has the exceptions; trainer.v1.sampler.sync_refill_failed_groups=true replaces "
                "such groups."
            )
        self.tq.kv_clear(keys=uids, partition_id=view.partition_id)
        return KVBatchMeta(keys=keys, tags=[view.rows[key] for key in keys], partition_id=view.partition_id)

    # Waiting

    def _wait_for(self, global_steps: int, partition_id: str, batch_size: int) -> Waiting:
        return Waiting(self, global_steps, partition_id, batch_size)

    def _check_arguments(self) -> None:
        threshold = self.max_off_policy_threshold
        if threshold is not None and (not isinstance(threshold, int) or threshold <= 0):
            raise SamplerArgumentError(
                f"trainer.v1.sampler.max_off_policy_threshold={threshold}: expected a whole number above 0, or null "
                "for no limit"
            )
        if self.max_off_policy_strategy not in ("drop", "wait"):
            raise SamplerArgumentError(
                f"trainer.v1.sampler.max_off_policy_strategy={self.max_off_policy_strategy}: expected drop or wait"
            )
        if self.refill_fn is None and (self._filter is not None or self.sync_refill_failed_groups):
            raise SamplerArgumentError(
                "filter_groups_metric and sync_refill_failed_groups replace groups: they need a refill_fn that submits "
                "prompts"
            )
        self._check_mode_arguments()

    def _check_mode_arguments(self) -> None:
        inflight = self.max_inflight_gen_batches
        if self._filter is not None and (not isinstance(inflight, int) or inflight <= 0):
            raise SamplerArgumentError(
                f"algorithm.filter_groups.max_inflight_gen_batches={inflight}: expected 1 or more"
            )
        if self.sync_refill_failed_groups and self.gen_batch_size != 1:
            raise SamplerArgumentError(
                f"trainer.v1.sampler.sync_refill_failed_groups needs data.gen_batch_size=1, not {self.gen_batch_size}: "
                "it replaces single prompts"
            )


@dataclass
class SyncRefill:
    """How many prompts to fetch anew while groups are filtered; see the module docstring."""

    buffer: ReplayBuffer
    credit: int = 0
    draining: bool = False

    def num_to_dispatch(self, view: PartitionView, evicted: Evictions, enough: bool) -> int:
        if enough:
            self.draining, self.credit = True, 0
        if self.draining:
            return 0
        self.credit += 2 * len(evicted.constant) + len(evicted.failed)
        capacity = self.buffer.max_inflight_gen_batches * (self.buffer.train_batch_size or 0)
        num_prompts = min(self.credit, max(0, capacity - len(view.in_flight)))
        num_prompts -= num_prompts % (self.buffer.gen_batch_size or 1)
        self.credit -= num_prompts
        return num_prompts
