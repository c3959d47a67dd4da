"""The verdict before `sample`: can it take its batch? Told from the prompt markers and the config alone.

verl 0.9.1: trainer/ppo/v1/replay_buffer.py, ReplayBuffer.sample and ReplayBufferAsync; how many prompts one call asks
for is decided in trainer/ppo/v1/trainer_base.py, PPOTrainer.step.

    sync    takes finished and failed prompts; while groups are filtered, only once nothing is in flight
    async   takes finished prompts, whatever is in flight; failed ones, and with the strategy `drop` old ones, are
            replaced; with `wait` an old prompt in flight holds everything back

Left out: rewards, so a group that will be filtered counts as settled; the trainer's step, so an age counts from the
newest step in the tags and is at least that. Without a config (or without a batch size in it), and in `val`, all
prompts that are there are waited for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kitlib.inspector.markers import STATUS_STATES
from kitlib.inspector.presence_rows import PresenceRows
from kitlib.inspector.render.states import State
from kitlib.inspector.render.wording import count, listed
from kitlib.inspector.settings import prompts_a_sample, setting
from kitlib.inspector.staleness_view import Policy, versions_spanned
from kitlib.inspector.tags import status_of
from kitlib.keys import uid_of

REFILL_FAILED = "trainer.v1.sampler.sync_refill_failed_groups"
Said = tuple[str, State]


def verdict_before_sample(rows: PresenceRows) -> Said:
    """READY, WAITING or NOT READY, with the numbers and the prompts that are in the way."""
    by_status: dict[str, list[str]] = {}
    for key, tag in zip(rows.marker_keys, rows.marker_tags, strict=True):
        by_status.setdefault(status_of(tag), []).append(key)
    if not by_status:
        return "NOT READY: no prompt marker, so there is nothing to wait for", State.BAD
    if unknown := sorted(set(by_status) - set(STATUS_STATES)):
        named = _named(rows, by_status[unknown[0]])
        return f"NOT READY: {unknown[0]} ({named}) is no status that the sampler knows", State.BAD
    config, in_val = rows.judgement.config, rows.selection.partition.partition_id == "val"
    wanted = None if in_val else prompts_a_sample(config)
    if wanted is None:
        return _all_of_them(rows, by_status)
    return _enough(rows, Fates.of(rows, by_status, config), wanted, config)


@dataclass(frozen=True)
class Fates:
    """What the sampler will do with each prompt."""

    taken: list[str]  # may be taken
    num_failed: int  # of these
    failed: list[str]  # failed, and replaced by a fresh prompt
    old: list[str]  # beyond the threshold, and replaced by a fresh prompt
    in_flight: dict[str, list[str]]  # status -> prompts that are waited for if more are needed
    holding: list[str]  # in flight and so old that nothing is sampled before they end

    @classmethod
    def of(cls, rows: PresenceRows, by_status: dict[str, list[str]], config: Any) -> Fates:
        policy, failed = Policy(config), _replaced(rows, by_status.get("failure", []), config)
        steps = {key: tag.get("global_steps") for key, tag in zip(rows.marker_keys, rows.marker_tags, strict=True)}
        now = max((step for step in steps.values() if isinstance(step, int)), default=0)
        spans = {uid: versions_spanned(now, step) for uid, step in steps.items() if isinstance(step, int)}
        hit = {uid for status, uids in by_status.items() for uid in uids if policy.verdict(status, spans.get(uid, 1))}
        finished, kept = by_status.get("finished", []), set(by_status.get("failure", [])).difference(failed)
        return cls(
            taken=[*(uid for uid in finished if uid not in hit), *kept],
            num_failed=len(kept),
            failed=failed,
            old=[uid for uid in finished if uid in hit],
            in_flight={status: by_status[status] for status in ("running", "pending") if status in by_status},
            holding=[uid for status in ("running", "pending") for uid in by_status.get(status, []) if uid in hit],
        )

    @property
    def num_coming(self) -> int:
        """Prompts that will settle later: those in flight, and those that will take the place of others."""
        return sum(map(len, self.in_flight.values())) + len(self.failed) + len(self.old)


def _replaced(rows: PresenceRows, failed: list[str], config: Any) -> list[str]:
    """The failed prompts that are replaced: in the async modes all of them, in sync those without a row, if asked."""
    if _is_async(config):
        return failed
    if not setting(config, REFILL_FAILED):
        return []
    with_rows = {uid_of(key) for key in rows.keys}
    return [uid for uid in failed if uid not in with_rows]


def _enough(rows: PresenceRows, fates: Fates, wanted: int, config: Any) -> Said:
    filters = bool(setting(config, "algorithm.filter_groups.enable"))
    said = "; ".join([_counted(fates, wanted, config), *_in_the_way(rows, fates)])
    num_taken = len(fates.taken)
    if num_taken + fates.num_coming < wanted:
        missing = count(wanted - num_taken - fates.num_coming, "more prompt has", "more prompts have")
        return f"NOT READY: {said}; {missing} to be submitted", State.BAD
    if num_taken < wanted:
        return f"WAITING: {said}", State.WARN
    if fates.holding:
        return f"WAITING: {said}; held back until the end of {_named(rows, fates.holding)} (strategy wait)", State.WARN
    if filters and fates.in_flight and not _is_async(config):
        return f"WAITING: {said}; while groups are filtered, nothing may be in flight", State.WARN
    if filters:
        return f"READY, unless groups are filtered: {said}", State.WARN
    return f"READY: {said}", State.GOOD


def _counted(fates: Fates, wanted: int, config: Any) -> str:
    """`4 prompts settled, 1 of them failed, and sample asks for 4`."""
    settled = "finished" if _is_async(config) else "settled"
    with_failed = f", {fates.num_failed} of them failed," if fates.num_failed else ""
    return f"{count(len(fates.taken), 'prompt')} {settled}{with_failed} and sample asks for {wanted:,}"


def _in_the_way(rows: PresenceRows, fates: Fates) -> list[str]:
    open_ = ", ".join(f"{len(uids)} {status} ({_named(rows, uids)})" for status, uids in fates.in_flight.items())
    gone = {"failed": fates.failed, "too old": fates.old}
    replaced = [f"{len(uids)} {why} ({_named(rows, uids)}), to be replaced" for why, uids in gone.items() if uids]
    return [*([open_] if open_ else []), *replaced]


def _all_of_them(rows: PresenceRows, by_status: dict[str, list[str]]) -> Said:
    """Is any prompt still on its way?"""
    total = len(rows.marker_keys)
    open_ = {status: by_status[status] for status in ("running", "pending") if status in by_status}
    if open_:
        num_settled = total - sum(map(len, open_.values()))
        said = ", ".join(f"{len(uids)} {status} ({_named(rows, uids)})" for status, uids in open_.items())
        return f"WAITING: {num_settled} of {count(total, 'prompt')} settled; {said}", State.WARN
    failed = f", {len(by_status['failure'])} of them failed" if "failure" in by_status else ""
    return f"READY: {total} of {count(total, 'prompt')} settled{failed}", State.GOOD


def _is_async(config: Any) -> bool:
    return Policy(config).mode != "sync"


def _named(rows: PresenceRows, uids: list[str]) -> str:
    return listed([rows.names.key(uid) for uid in uids], 2)
