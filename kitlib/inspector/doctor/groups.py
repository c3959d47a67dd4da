"""Groups: does every prompt have the sessions that the advantage expects to compare?

verl 0.9.1: a prompt that finished with fewer rows than rollout.n is taken as it is, without a remark; a group of one
gets its raw reward as advantage; a settled prompt without any row is left out of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kitlib.inspector.doctor.eviction import evicted
from kitlib.inspector.doctor.finding import Finding, few, some, verb
from kitlib.inspector.doctor.scene import Row, Scene, grouped, keys_of, read_key, sessions_of
from kitlib.inspector.doctor.situation import Situation

REFILL = "trainer.v1.sampler.sync_refill_failed_groups"


def short_groups(s: Situation) -> Iterator[Finding]:
    """short_group: groups with at least one row and fewer sessions than expected."""
    if s.stage in ("validate", "resume", "clear", None):
        return
    sizes = _sizes(s)
    short = {uid: (num, want) for uid, (num, want) in sizes.items() if 0 < num < want and not _in_other(s, uid)}
    if not short:
        return
    found = sum(min(num, want) for num, want in sizes.values())
    expected = sum(want for _, want in sizes.values())
    singles = [uid for uid, (num, _) in short.items() if num == 1]
    counts = list(short.values())
    numbers: dict[str, float] = {"rows_expected": expected, "rows_found": found, "rows": found, "groups": len(short)}
    numbers["sessions_expected"] = counts[0][1]
    numbers |= {name: counts[i][0] for i, name in enumerate(("rows_of_first", "rows_of_second")) if i < len(counts)}
    if s.batch is not None:
        numbers["padding"] = len(s.padding_rows)
    reward = _single_reward(s, singles)
    if reward is not None:
        numbers["advantage_of_single_row"] = reward
    yield Finding(
        "short_group",
        "warning",
        f"{_list(short)}: {expected - found} of {some(expected, 'expected row')} "
        f"{verb(expected - found, 'is', 'are')} missing, and no later stage mentions it."
        + (_of_singles(singles, reward) if singles and s.choices.compares_groups else ""),
        "Look at the agent-loop log of the missing sessions: they raised, or returned no output."
        + ("" if s.choices.is_async else f" {REFILL} replaces only groups that failed without any row."),
        s.partition_id,
        _names(s, list(short)),
        numbers=numbers,
        view="group_board",
    )


def uneven_groups(s: Situation) -> Iterator[Finding]:
    """uneven_groups: groups with more sessions than rollout.n."""
    for name, scene in s.scenes.items():
        mine = name == s.partition_id
        groups = grouped(s.real_rows) if mine else _settled_elsewhere(s, scene)
        large = {}
        for uid, rows in groups.items():
            want = s.sessions_expected(uid, name)
            if want and (num := len(sessions_of(rows))) > want and s.choices.is_known:
                large[uid] = (num, want)
        if not large:
            continue
        said = few([f"{uid} has {num} sessions instead of {want}" for uid, (num, want) in large.items()])
        keys = _names(s, list(large)) if mine else tuple(k for uid in large for k in keys_of(scene.rows_of[uid]))
        yield Finding(
            "uneven_groups",
            "warning",
            f"In {name} {said}. Two prompts share a uid, or old rows of the "
            "prompt were not cleared before it ran again.",
            "Give every prompt a uid of its own (str(uuid4())), and clear the rows of a prompt before you submit it "
            "again.",
            name,
            keys,
            numbers={
                "sessions": [num for num, _ in large.values()],
                "sessions_expected": next(iter(large.values()))[1],
                "groups": len(large),
                "rows": sum(len(groups[uid]) for uid in large),
            },
            view="group_board",
        )


def _settled_elsewhere(s: Situation, scene: Scene) -> dict[str, list[Row]]:
    """Groups of another partition that belong there: with a marker, and not known to the partition of the stage."""
    home = {*s.scene.markers, *s.scene.rows_of}
    return {uid: rows for uid, rows in scene.rows_of.items() if uid in scene.markers and uid not in home}


def sessions_out_of_range(s: Situation) -> Iterator[Finding]:
    """session_out_of_range: a session number of n or more."""
    n = s.n()
    if n is None or not s.choices.is_known:
        return
    beyond = [row for row in s.real_rows if row.session_id is not None and row.session_id >= n]
    wild = [row for row in beyond if (row.session_id or 0) >= (s.sessions_expected(row.uid) or n)]
    if wild:
        yield Finding(
            "session_out_of_range",
            "info",
            f"{few(keys_of(wild))} {verb(len(wild), 'names', 'name')} a session that does not exist with n={n} (0 to "
            f"{n - 1}).",
            "See whether rollout.n was changed between two starts, or a prompt sets its own number of sessions.",
            s.partition_id,
            keys_of(wild),
            numbers={"n": n, "rows": len(wild)},
        )


def empty_groups(s: Situation) -> Iterator[Finding]:
    """all_groups_empty: no group that will be sampled has a row; empty_group_skipped: some have none."""
    if s.stage != "sample" or s.partition_id == "val":
        return
    going = evicted(s)
    chosen = [uid for uid in s.scene.settled if uid not in going][: s.needed]
    empty = [uid for uid in chosen if uid not in s.scene.rows_of and "_" not in uid]
    if not empty or s.needed is None:
        return
    is_full = len(chosen) >= s.needed  # else more groups will come, and the batch need not be empty
    skipped = [uid for uid in empty if not _in_other(s, uid)]
    numbers = {"groups": len(chosen), "groups_without_rows": len(empty)}
    if len(empty) == len(chosen) and skipped and is_full:
        yield Finding(
            "all_groups_empty",
            "error",
            f"None of the {some(len(chosen), 'settled prompt')} that will be sampled has a single row "
            f"({few(empty)}): the sampler takes them and stops with a RuntimeError.",
            _replace(s, empty),
            s.partition_id,
            tuple(empty),
            numbers=numbers,
        )
    elif empty:
        yield Finding(
            "empty_group_skipped",
            "warning",
            f"{few(empty)} settled without a row and will be left out without a word: the batch has "
            f"{some(max(len(chosen), s.needed) - len(empty), 'group')} instead of {max(len(chosen), s.needed)}.",
            _replace(s, empty),
            s.partition_id,
            tuple(empty),
            numbers=numbers,
        )


def _replace(s: Situation, empty: list[str]) -> str:
    """How groups without a row get replaced: only failed ones are, in sync mode on request, otherwise always."""
    look = "Look at the agent-loop log of these prompts"
    returned = [uid for uid in empty if s.scene.markers[uid].get("status") == "finished"]
    if returned:
        return f"{look}: all sessions of {few(returned)} returned no output. A session that raises fails its prompt" + (
            ", and a failed prompt is replaced." if s.choices.is_async else f", which {REFILL}=true replaces."
        )
    return f"{look}; set {REFILL}=true to have such groups replaced."


def _sizes(s: Situation) -> dict[str, tuple[int, int]]:
    """{uid: (sessions with a row, sessions expected)} of the groups that are or will be in the batch."""
    if s.is_before_sampling:
        going = evicted(s)
        uids = [] if s.stage == "submit_batch_to_rollout" else [u for u in s.scene.settled if u not in going]
        registered = grouped(row for row in s.scene.rows.values() if not row.is_padding)  # with fields or without
        groups = {uid: registered.get(uid, []) for uid in uids if "_" not in uid}
    else:
        torn = _torn(s)
        groups = grouped(row for row in (*s.real_rows, *_bare(s)) if row.is_readable and row.uid not in torn)
    return {uid: (len(sessions_of(rows)), s.sessions_expected(uid) or 0) for uid, rows in groups.items()}


def _bare(s: Situation) -> list[Row]:
    """Rows of the batch that are registered without a field: their session is not lost, they have a finding."""
    rows = [s.scene.rows[key] for key in s.batch.keys if key in s.scene.rows] if s.batch is not None else []
    return [row for row in rows if not row.num_fields]


def _torn(s: Situation) -> set[str]:
    """uids of the batch of which a key is gone from the queue: their rows were there, that is another finding."""
    keys = s.batch.keys if s.batch is not None else ()
    return {read_key(key)[0] for key in keys if key not in s.scene.rows}


def _in_other(s: Situation, uid: str) -> bool:
    return any(uid in scene.rows_of for name, scene in s.scenes.items() if name != s.partition_id)


def _names(s: Situation, uids: list[str]) -> tuple[str, ...]:
    """The markers while they exist, else the rows."""
    rows = grouped(s.real_rows)
    return tuple(key for uid in uids for key in ([uid] if uid in s.scene.markers else keys_of(rows.get(uid, []))))


def _list(sizes: dict[str, tuple[int, int]]) -> str:
    return few([f"{uid} has {num} of {want} sessions" for uid, (num, want) in sizes.items()])


def _single_reward(s: Situation, singles: list[str]) -> float | None:
    """Raw reward of the first group of one (reads rm_scores)."""
    rows: list[Row] = [row for row in s.real_rows if row.uid in singles[:1]]
    scores = s.read("rm_scores", rows)
    return float(np.sum(scores[rows[0].key])) if rows and rows[0].key in scores else None


def _of_singles(singles: list[str], reward: float | None) -> str:
    raw = "" if reward is None else f" {reward:g}"
    return f" A group of one ({few(singles)}) is not centred: its advantage is its raw reward{raw}."
