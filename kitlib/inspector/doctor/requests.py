"""Requested against returned: keys of a get or of a handle that the queue does not hold, chunks that disagree.

verl 0.9.1 and TransferQueue 0.1.11: a get of keys of which some are gone returns fewer rows and only logs a warning;
joining chunks of a handle needs equal fields and equal extra_info.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kitlib.inspector.doctor.finding import Finding, few, some, verb
from kitlib.inspector.doctor.handle import Handle
from kitlib.inspector.doctor.situation import Situation


def fewer_rows(s: Situation) -> Iterator[Finding]:
    """fewer_rows_than_keys: keys that are asked for and not there; those that the trainer has cleared are no fault."""
    for what, handle in (("get", s.request), ("batch", s.batch)):
        if handle is None or (what == "batch" and s.request is not None):
            continue
        partition = s.snapshot.partitions.get(handle.partition_id)
        cleared = set(s.fact("cleared", ()))
        gone = [k for k in dict.fromkeys(handle.keys) if partition is None or k not in partition]
        fault = [key for key in gone if key not in cleared]
        if fault:
            yield _fewer(s, what, handle, fault, len(gone))


def _fewer(s: Situation, what: str, handle: Handle, gone: list[str], num_gone: int) -> Finding:
    wanted, there = len(handle.keys), len(handle.keys) - num_gone
    places = {k: [name for name, part in s.snapshot.partitions.items() if k in part] for k in gone}
    elsewhere = {key: names for key, names in places.items() if names}
    effect = (
        f"it returns {some(there, 'row')} and no error, and row i no longer belongs to key i"
        if there
        else "it stops with a ValueError"
    )
    return Finding(
        "fewer_rows_than_keys",
        "error",
        f"The {what} names {some(wanted, 'key')} and {len(gone)} of them, {few(gone)}, "
        f"{verb(len(gone), 'is', 'are')} not in {handle.partition_id}: {effect}.",
        f"Ask {few(sorted({n for names in elsewhere.values() for n in names}))} for these keys."
        if elsewhere
        else "List the keys again (kv_list), or use strict_get, which names what is gone; look who cleared them.",
        handle.partition_id,
        tuple(gone),
        numbers={
            "requested": wanted,
            "returned": there,
            "keys": wanted,
            "rows": there,
            "missing": len(gone),
        },
        evidence=tuple(f"{key} is in {few(names)}" for key, names in list(elsewhere.items())[:3]),
        view="batch_handle",
    )


def same_key_twice(s: Situation) -> Iterator[Finding]:
    """same_key_twice: a handle or a request that names a key more than once."""
    for handle in (s.request, s.batch):
        twice = [key for key, num in Counter(handle.keys).items() if num > 1] if handle is not None else []
        if twice and handle is not None:
            yield Finding(
                "same_key_twice",
                "error",
                f"{few(twice)} {verb(len(twice), 'stands', 'stand')} in the same handle more than once: a KVBatchMeta "
                "refuses that, and a put of it leaves half of it behind.",
                "Name every key once.",
                handle.partition_id,
                tuple(twice),
                numbers={"keys": len(twice)},
                view="batch_handle",
            )


def chunks_disagree(s: Situation) -> Iterator[Finding]:
    """batch_info_clash: chunks of one batch with different extra_info, fields or partition."""
    chunks = s.observed.chunks
    if len(chunks) < 2:
        return
    clashes = {
        name: [chunk.extra_info[name] for chunk in chunks if name in chunk.extra_info]
        for name in dict.fromkeys(name for chunk in chunks for name in chunk.extra_info)
    }
    clashes = {name: values for name, values in clashes.items() if any(v != values[0] for v in values)}
    for attribute in ("fields", "partition_id"):
        values = [getattr(chunk, attribute) for chunk in chunks]
        if any(value != values[0] for value in values):
            clashes[attribute] = values
    if not clashes:
        return
    name, values = next(iter(clashes.items()))
    yield Finding(
        "batch_info_clash",
        "error",
        f"{some(len(chunks), 'chunk')} of the batch give different values for {few(list(clashes))} ("
        f"{name}: {few([repr(value) for value in values])}); joining the chunks raises a ValueError.",
        "Keep numbers of one rank out of extra_info, or reduce them before the chunks are joined.",
        chunks[0].partition_id,
        tuple(dict.fromkeys(key for chunk in chunks for key in chunk.keys)),
        numbers=clashes,
        view="batch_handle",
    )
