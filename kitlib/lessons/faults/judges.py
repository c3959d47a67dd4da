"""Who says what is wrong with one part of a finding: a row, several rows, a group, a field, a partition.

Each function gives a judge, which takes an answer and returns the mistakes in it. The truth is looked up in the queue
at the moment of the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kitlib.inspector.names import ShortNames
from kitlib.inspector.render.wording import count
from kitlib.keys import is_trajectory_key, uid_of
from kitlib.lessons.faults.fault import Judge
from kitlib.lessons.reading import name_of, names_of
from kitlib.transfer_queue import QueueProtocol, explain_get, take_snapshot

MARKER = "is a prompt marker: it has tags and no fields, and that is as it should be"


def one_key(tq: QueueProtocol, right: str, healthy: str) -> Judge:
    """One key. healthy: what is to be said of another row, `it has every field ..`."""

    def judge(said: Any) -> list[str]:
        name = name_of(said)
        return [] if _whole(tq, name, right) == right else [_about(tq, name, healthy)]

    return judge


def some_keys(tq: QueueProtocol, right: Sequence[str], healthy: str) -> Judge:
    """Several keys, in any order."""

    def judge(said: Any) -> list[str]:
        names = names_of(said)
        if names is None:
            return [f"the answer is a set of keys, not {said!r}"]
        wrong = [_about(tq, name, healthy) for name in sorted(names) if _whole(tq, name) not in right]
        missing = set(right) - {_whole(tq, name) for name in names}
        return wrong + ([f"{count(len(missing), 'key')} still missing from your answer"] if missing else [])

    return judge


def one_group(tq: QueueProtocol, right: str, healthy: str) -> Judge:
    """The uid of one group. healthy: what is to be said of another group."""

    def judge(said: Any) -> list[str]:
        text = name_of(said)
        uids = sorted({uid_of(key) for key in _known(tq)} | {right})
        short = ShortNames(_known(tq))
        meant = [uid for uid in uids if text in (uid, short.uid(uid))]
        if right in (*meant, text):
            return []
        if meant:
            return [f"{text}: {healthy}"]
        if is_trajectory_key(text):
            return [f"{text} is the key of a row: the uid of its group is what stands before the first underscore"]
        return [f"no key begins with {text!r}: a uid is what stands before the first underscore of a key"]

    return judge


def lost_field(tq: QueueProtocol, home: str, key: str, right: str) -> Judge:
    """The field that a row has lost."""

    def judge(said: Any) -> list[str]:
        name = name_of(said)
        if name == right:
            return []
        if name not in take_snapshot(tq).partitions[home].fields:
            return [f"no row has {name!r}: a field that nobody has is not due yet, or misspelt"]
        lacking = explain_get(tq, [key], [name], home).missing_cells
        return [f"{name} is on the row, too"] if not lacking else [f"the row lost another field than {name}"]

    return judge


def one_partition(right: str, home: str) -> Judge:
    """The partition where a row lies that belongs into `home`."""

    def judge(said: Any) -> list[str]:
        name = name_of(said)
        if name == right:
            return []
        if name == home:
            where = "a get from there does not find it: where does kv_list see it?"
            return [f"{name} is where the row belongs, and {where}"]
        return [f"there is no partition {name!r}: kv_list() names them all"]

    return judge


def _known(tq: QueueProtocol) -> list[str]:
    return [key for keys in tq.kv_list().values() for key in keys]


def _whole(tq: QueueProtocol, said: str, *others: str) -> str | None:
    """The key that is meant by a whole or a short one, among those of the queue and these others."""
    known = [*_known(tq), *others]
    short = ShortNames(known)
    return next((key for key in known if said in (key, short.key(key))), None)


def _uids(tq: QueueProtocol) -> set[str]:
    """The uids of all rows, as they are and as short as in the views."""
    known = _known(tq)
    uids, short = {uid_of(key) for key in known if is_trajectory_key(key)}, ShortNames(known)
    return uids | {short.uid(uid) for uid in uids}


def _about(tq: QueueProtocol, said: str, healthy: str) -> str:
    """What a wrong key is."""
    key = _whole(tq, said)
    if key is None and said in _uids(tq):
        return f"{said} is the uid of a whole group: which of its rows is it? A key is {{uid}}_{{session_id}}_{{index}}"
    if key is None:
        return f"no partition has a key {said!r}: a key is {{uid}}_{{session_id}}_{{index}}"
    if not is_trajectory_key(key):
        return f"{said} {MARKER}"
    return f"{said} is a healthy row: {healthy}"


def among(right: Iterable[str], healthy: str) -> Judge:
    """A field among those that are right."""
    accepted = tuple(right)
    return lambda said: [] if name_of(said) in accepted else [f"{name_of(said)}: {healthy}"]
