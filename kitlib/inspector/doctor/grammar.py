"""Key grammar and markers: keys that the sampler or the advantage stage cannot read, or takes for something else.

verl 0.9.1: trainer/ppo/v1/replay_buffer.py (uid = what stands before the first underscore; is_prompt, status and
global_steps of a marker) and trainer/ppo/v1/utils.py (key.rsplit("_", 2), int(index)). TransferQueue 0.1.11: a tag put
to a cleared key makes a bare key again, and a refused put leaves half-registered keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kitlib.inspector.doctor.finding import Finding, clear_call, few, some, verb
from kitlib.inspector.doctor.scene import Row, Scene, keys_of
from kitlib.inspector.doctor.situation import Situation
from kitlib.keys import uid_of

_PLAIN_END = re.compile(r"_(0|[1-9][0-9]*)_(0|[1-9][0-9]*)\Z")
STATUSES = ("pending", "running", "finished", "failure")


def underscores(s: Situation) -> Iterator[Finding]:
    """uid_underscore: a uid with an underscore, so that the sampler looks for another group."""
    for scene in s.scenes.values():
        uids = [uid for uid in scene.markers if "_" in uid]
        loose = _underscored_rows(s, scene)
        if not uids and not loose:
            continue
        left = [row for uid in uids for row in scene.rows_of.get(uid, [])]
        first = uids[0] if uids else loose[0].uid
        yield Finding(
            "uid_underscore",
            "error",
            f"The uid {first} has an underscore: the sampler cuts keys at the first one, looks for "
            f"{uid_of(first)!r} and finds no row. {_lost(scene, uids or [first], left or loose)}",
            "Use uids without an underscore, such as str(uuid4()), and clear these keys.",
            scene.name,
            tuple(uids) or keys_of(loose),
            numbers={"rows_left_behind": len(left or loose), "prompts": len(uids)},
        )


def _underscored_rows(s: Situation, scene: Scene) -> list[Row]:
    """Rows of such a uid without a marker, where the sampler has not taken them."""
    return [r for r in scene.rows.values() if "_" in r.uid and r.is_readable and r.uid not in scene.markers]


def _lost(scene: Scene, uids: list[str], rows: list[Row]) -> str:
    left = f"its {some(len(rows), 'row')} {verb(len(rows), 'stays', 'stay')} in the queue."
    if scene.name == "val":
        return f"The validation batch comes back without it and {left}"
    if set(scene.settled) <= set(uids):
        return f"No settled group has rows then, so sampling stops with a RuntimeError, and {left}"
    return f"The group is lost from the batch without a word and {left}"


def ghosts(s: Situation) -> Iterator[Finding]:
    """ghost_key: a key with a status that is neither a marker nor a row."""
    for scene in s.scenes.values():
        if not scene.ghosts:
            continue
        mine = scene.name == s.partition_id
        settled, needed = len(scene.settled), s.needed if mine else None
        waits = mine and s.is_before_sampling and needed is not None and settled < needed
        yield Finding(
            "ghost_key",
            "error" if waits else "warning",
            f"{few(scene.ghosts)} {verb(len(scene.ghosts), 'exists but is', 'exist but are')} not taken for a prompt: "
            "there is no is_prompt in the tag and no field. A status was written after the key had been cleared."
            + (" sample waits without end for it." if waits else ""),
            f"Remove it: {clear_call(scene.ghosts, scene.name)}; or submit the prompt again, with is_prompt, status "
            "and global_steps in the tag.",
            scene.name,
            scene.ghosts,
            numbers={"needed": needed, "settled": settled} if waits else {"keys": len(scene.ghosts)},
            evidence=tuple(f"{key}: tag {dict(scene.partition.tag_of(key))}" for key in scene.ghosts[:3]),
        )


def half_registered(s: Situation) -> Iterator[Finding]:
    """half_registered_key: a trajectory key without a single field."""
    for scene in s.scenes.values():
        coming = set(scene.in_flight)  # the keys of a put are there a moment before its data
        bare = [row for row in scene.rows.values() if not row.num_fields and row.uid not in coming]
        if bare:
            yield Finding(
                "half_registered_key",
                "error",
                f"{few(keys_of(bare))} {verb(len(bare), 'is', 'are')} registered and {verb(len(bare), 'has', 'have')} "
                "no field: a put was refused after the key had been made, or its data never came. The sampler takes "
                "it for a trajectory, and the first read of the batch fails.",
                f"Remove it, {clear_call(keys_of(bare), scene.name)}, and write the row again.",
                scene.name,
                keys_of(bare),
                numbers={"fields": 0, "keys": len(bare)},
                evidence=tuple(f"{row.key}: tag {dict(row.tag)}" for row in bare[:3]),
            )


def bad_keys(s: Situation) -> Iterator[Finding]:
    """bad_key: a row whose key does not read as uid_session_index; odd_key: it reads, but not as written by verl."""
    bad = [row for row in s.rows if not row.is_readable]
    odd = [row for row in s.rows if row.is_readable and not _PLAIN_END.search(row.key)]
    if bad:
        yield Finding(
            "bad_key",
            "error",
            f"{few(keys_of(bad))} {verb(len(bad), 'does', 'do')} not read as uid_session_index: "
            f"{_complaint(bad[0].key)}, and the advantage stage stops there.",
            "Write trajectories under {uid}_{session_id}_{index} with two whole numbers at the end.",
            s.partition_id,
            keys_of(bad),
            numbers={"keys": len(bad)},
        )
    unclean = [key for scene in s.scenes.values() for key in _unclean(scene)]
    told = {*keys_of(bad), *s.scene.notes, *s.scene.strangers}
    odd_keys = [*keys_of(odd), *(key for key in unclean if key not in told)]
    if odd_keys:
        yield Finding(
            "odd_key",
            "warning",
            f"{few([repr(key) for key in odd_keys])} {verb(len(odd_keys), 'is', 'are')} read as a trajectory or a "
            "prompt, but not written as the agent loop writes them: another spelling of the same session, or "
            "characters that do not show.",
            "Write keys as {uid}_{session_id}_{index}: a uid of letters, digits and dashes, numbers without zeros in "
            "front.",
            s.partition_id,
            tuple(dict.fromkeys(odd_keys)),
            numbers={"keys": len(odd_keys)},
        )


def strange_keys(s: Situation) -> Iterator[Finding]:
    """odd_key: a key that is neither a prompt nor a trajectory of one, so that nobody samples or clears it."""
    scene = s.scene
    held = set(s.batch.keys) if s.batch is not None else set()
    odd = [key for key in (*scene.notes, *scene.strangers) if key not in held]
    if odd:
        yield Finding(
            "odd_key",
            "warning",
            f"{few(odd)} in {scene.name} {verb(len(odd), 'is', 'are')} neither a prompt (no is_prompt in the tag) nor "
            f"uid_session_index of a prompt: nobody samples or clears {verb(len(odd), 'it', 'them')}.",
            "Write a trajectory under {uid}_{session_id}_{index}, and other data to a partition of its own. To remove "
            f"this: {clear_call(odd, scene.name)}.",
            scene.name,
            tuple(odd),
            numbers={"keys": len(odd)},
            evidence=tuple(f"{key}: tag {dict(scene.partition.tag_of(key))}" for key in odd[:3]),
        )


def _unclean(scene: Scene) -> list[str]:
    """Keys with an empty uid, blanks or characters that do not print."""
    return [key for key in scene.partition.keys if not key.isprintable() or " " in key or not uid_of(key)]


def _complaint(key: str) -> str:
    return "it has no two underscores" if key.count("_") < 2 else "its last part is no whole number"


def marker_tags(s: Situation) -> Iterator[Finding]:
    """marker_tag_incomplete: a prompt without status or global_steps; unknown_status: a word the sampler refuses."""
    for scene in s.scenes.values():
        incomplete = {
            uid: [name for name in ("status", "global_steps") if name not in tag]
            for uid, tag in scene.markers.items()
            if "status" not in tag or "global_steps" not in tag
        }
        if incomplete:
            first, absent = next(iter(incomplete.items()))
            yield Finding(
                "marker_tag_incomplete",
                "error",
                f"The marker {few(list(incomplete))} has no {few(absent)} in its tag; the sampler stops with a "
                "KeyError on its first look.",
                "Register prompts with is_prompt, status and global_steps: tq.kv_put(key=uid, partition_id=.., "
                "tag={'is_prompt': True, 'status': 'pending', 'global_steps': step}).",
                scene.name,
                tuple(incomplete),
                numbers={"markers": len(incomplete)},
                evidence=(f"{first}: tag {dict(scene.markers[first])}",),
            )
        unknown = [u for u, tag in scene.markers.items() if "status" in tag and tag["status"] not in STATUSES]
        if unknown:
            status = scene.markers[unknown[0]]["status"]
            yield Finding(
                "unknown_status",
                "error",
                f"The marker {few(unknown)} has the status {status!r}, which the sampler does not know "
                f"({', '.join(STATUSES)}); it stops with a ValueError.",
                "Write finished, if all sessions of the prompt have settled.",
                scene.name,
                tuple(unknown),
                numbers={"status": status, "markers": len(unknown)},
            )
