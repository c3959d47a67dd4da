"""Dict columns (these rules read extra_fields): reward keys, aborted answers, the same content again and again.

verl 0.9.1: validation collects reward_extra_info key by key and fills gaps with None; its own score list is called
`reward`; the group filter wants its metric on every row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from kitlib.inspector.doctor.finding import Finding, few, some, verb
from kitlib.inspector.doctor.scene import Row, grouped, keys_of, last_outputs
from kitlib.inspector.doctor.situation import Situation

RESERVED = ("reward",)
MANY_ROWS, MANY_TOKENS = 4, 4  # where all groups repeat one row, so many and so long ones do not agree by chance
MANY_KEYS = 1000  # distinct reward keys after which a key is data, not a name


def sparse_reward_keys(s: Situation) -> Iterator[Finding]:
    """sparse_reward_keys: a reward key that some rows have and others lack."""
    metric = s.choices.filter_metric
    filtering = s.stage == "sample" and s.partition_id != "val" and metric not in (None, "reward")
    if s.stage != "validate" and not filtering:
        return
    rows, infos = _infos(s)
    if filtering:
        without = [row for row in rows if metric not in infos[row.key]]
        if without:
            yield _sparse(s, str(metric), without, len(rows), filtering)
        return
    names = dict.fromkeys(name for row in rows for name in infos[row.key])
    lacking: dict[tuple[str, ...], list[str]] = {}
    for name in list(names)[:MANY_KEYS]:
        if name not in RESERVED and (without := [row for row in rows if name not in infos[row.key]]):
            lacking.setdefault(keys_of(without), []).append(name)
    by_key = {row.key: row for row in rows}
    for keys, found in lacking.items():
        yield _sparse(s, found[0], [by_key[key] for key in keys], len(rows), filtering)


def _sparse(s: Situation, name: str, without: list[Row], num_rows: int, filtering: bool) -> Finding:
    have = num_rows - len(without)
    uids = few(sorted({row.uid for row in without}))
    effect = (
        f"the group filter needs it, and the sampler stops with a RuntimeError for {uids}"
        if filtering
        else f"the metrics drop the gaps, so the numbers of {name} rest on {some(have, 'row')}"
    )
    return Finding(
        "sparse_reward_keys",
        "error" if filtering else "warning",
        f"reward_extra_info has the key {name} on {have} of {some(num_rows, 'row')} and not on "
        f"{few(keys_of(without))}: {effect}.",
        f"Let the reward function return {name} for every row"
        + (", or filter by another metric (algorithm.filter_groups.metric)." if filtering else "."),
        s.partition_id,
        keys_of(without),
        ("extra_fields",),
        {"have": have, "of": num_rows, "reward_key": name},
    )


def reserved_reward_key(s: Situation) -> Iterator[Finding]:
    """reserved_reward_key: a reward key named like validation's own list of scores."""
    if s.stage != "validate":
        return
    rows, infos = _infos(s)
    for name in RESERVED:
        having = [row for row in rows if name in infos[row.key]]
        if having:
            yield Finding(
                "reserved_reward_key",
                "error",
                f"{few(keys_of(having))} {verb(len(having), 'returns', 'return')} a reward key named {name}, which is "
                "also the name of the list of scores: that list gets entries too many, and rows of every later "
                "validation batch are shifted.",
                "Rename the key in the reward function.",
                s.partition_id,
                keys_of(having),
                ("extra_fields",),
                {"reward_key": name, "rows": len(having)},
            )


def hidden_aborts(s: Situation) -> Iterator[Finding]:
    """hidden_abort: a row marked success whose generation was aborted."""
    rows = s.readable_rows
    extra = s.read("extra_fields", rows)
    bad = [
        r for r in rows if _stop_reason(extra.get(r.key)) in ("abort", "aborted") and r.tag.get("status") == "success"
    ]
    if bad:
        lengths = [row.tag.get("response_len") for row in bad]
        yield Finding(
            "hidden_abort",
            "warning",
            f"{few(keys_of(bad))} {verb(len(bad), 'is', 'are')} marked success, but the stop reason is aborted and the "
            f"response has {lengths[0]} tokens.",
            "Drop the row, or let the agent loop raise for an aborted answer.",
            s.partition_id,
            keys_of(bad),
            ("responses", "extra_fields"),
            {"response_len": lengths[0], "rows": len(bad)},
            view="tokens",
        )


def duplicate_content(s: Situation) -> Iterator[Finding]:
    """duplicate_content (reads prompts, responses): one sample in every row of several prompts, or of each prompt."""
    rows = s.readable_rows
    if s.is_before_sampling or len(rows) < 3:
        return
    prompts, responses = s.read("prompts", rows), s.read("responses", rows)
    content = {
        r.key: _bytes(prompts.get(r.key)) + b"|" + _bytes(responses.get(r.key)) for r in rows if r.key in responses
    }
    single: dict[bytes, list[str]] = {}  # content -> uids whose rows all have it
    for uid, members in grouped(rows).items():
        seen = {content.get(row.key, row.key.encode()) for row in members}
        if len(seen) == 1:
            single.setdefault(seen.pop(), []).append(uid)
    least = 1 if _is_copied(rows, responses, sum(map(len, single.values()))) else 2
    repeated = {uid for uids in single.values() if len(uids) >= least for uid in uids}
    same = [row for row in rows if row.uid in repeated]
    if len(same) < 3:
        return
    distinct = len({content[row.key] for row in same})
    yield Finding(
        "duplicate_content",
        "warning",
        f"{some(len(same), 'row')} of {some(len(repeated), 'prompt')} hold {some(distinct, 'distinct sequence')}: the "
        "same sample was stored again and again.",
        "See whether a buffer returned one slot for every key, or generation was greedy "
        "(actor_rollout_ref.rollout.temperature), and submit these prompts again.",
        s.partition_id,
        keys_of(same),
        ("prompts", "responses"),
        {"rows": len(same), "distinct": distinct, "prompts": len(repeated)},
        view="tokens",
    )


def _is_copied(rows: Sequence[Row], responses: Mapping[str, Any], num_single: int) -> bool:
    """True if every group is one row again and again, and long enough to tell: a short answer may well come twice."""
    num_groups = len({row.uid for row in rows})
    return (
        len(rows) >= max(MANY_ROWS, 2 * num_groups)
        and num_single == num_groups
        and min((np.size(value) for value in responses.values()), default=0) >= MANY_TOKENS
    )


def masked_tool_tokens(s: Situation) -> Iterator[Finding]:
    """masked_tool_tokens (reads response_mask): tool output that attention_mask counts and response_mask does not."""
    rows = s.scene.having(s.readable_rows, "attention_mask")
    masks = s.read("response_mask", rows)
    tools = {row.key: masks[row.key] for row in rows if np.any(masks.get(row.key, 0)) and not np.all(masks[row.key])}
    if tools:
        key, mask = next(iter(tools.items()))
        num_tool = int(np.size(mask) - np.sum(mask))
        yield Finding(
            "masked_tool_tokens",
            "info",
            f"{num_tool} of the {np.size(mask)} response tokens of {key} are tool output (mask 0); a number taken over "
            "attention_mask would count them.",
            "Use response_mask for differences of log-probs, entropy and lengths.",
            s.partition_id,
            tuple(tools),
            ("response_mask", "attention_mask"),
            {"tool_tokens": num_tool, "response_tokens": int(np.size(mask)), "rows": len(tools)},
            view="tokens",
        )


def _infos(s: Situation) -> tuple[list[Row], dict[str, dict[str, Any]]]:
    """The rows that validation or the filter reads, and their reward_extra_info where it is a dict."""
    settled = set(s.scene.settled)
    rows = [row for row in s.readable_rows if row.uid in settled]
    rows = last_outputs(rows) if s.stage == "validate" else rows
    extra = s.read("extra_fields", rows)
    infos = {}
    for row in rows:
        value = extra.get(row.key)
        info = value.get("reward_extra_info", {}) if isinstance(value, dict) else None
        if isinstance(info, dict):
            infos[row.key] = info
    return [row for row in rows if row.key in infos], infos


def _stop_reason(value: Any) -> Any:
    return value.get("stop_reason") if isinstance(value, dict) else None


def _bytes(value: Any) -> bytes:
    return value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()
