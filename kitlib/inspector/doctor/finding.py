"""`Finding`: one thing that is wrong (or good to know) about a queue, with its keys and the way out.

verl 0.9.1 has no counterpart. A kind is a stable word: tests, scripts and the course refer to it, while the sentences
may change. The rules (kitlib.inspector.doctor.rules) list them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["error", "warning", "info"]

# error: the stage fails, hangs, or trains or reports something wrong. warning: it goes on, probably not as wanted.
# info: good to know.
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")


@dataclass(frozen=True)
class Finding:
    """What a rule found.

    kind:      a stable word such as `field_missing`.
    partition: where the keys are; None if it is about no partition.
    keys:      exactly the offending keys. A group is named by its prompt marker while that exists, else by its rows.
    fields:    the fields concerned.
    numbers:   the numbers behind the sentence, by name.
    says:      the diagnosis, one or two plain sentences.
    way_out:   what to do next: a call, a command or a config key.
    evidence:  what was seen, one line each: presence, tags, who wrote it last and when.
    reports:   public reports of the same kind.
    view:      name of the view of kitlib.inspector that shows it.
    """

    kind: str
    severity: Severity
    says: str
    way_out: str
    partition: str | None = None
    keys: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)
    evidence: tuple[str, ...] = ()
    reports: tuple[str, ...] = ()
    view: str = "presence"

    @property
    def rank(self) -> int:
        """0 for an error, 1 for a warning, 2 for an info."""
        return SEVERITIES.index(self.severity)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values: kind, severity, keys, fields, numbers, says, way_out and the rest."""
        return {
            "kind": self.kind,
            "severity": self.severity,
            "partition": self.partition,
            "keys": list(self.keys),
            "fields": list(self.fields),
            "numbers": {name: _plain(value) for name, value in self.numbers.items()},
            "says": self.says,
            "way_out": self.way_out,
            "evidence": list(self.evidence),
            "reports": list(self.reports),
        }


def _plain(value: Any) -> Any:
    """A number of numpy as Python's own, NaN and infinities as words (JSON has none); lists item by item."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    value = value.item() if hasattr(value, "item") and hasattr(value, "dtype") else value
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def few(keys: Sequence[str], shown: int = 4) -> str:
    """`a, b` or `a, b, c, d and 12 more`: keys in a sentence."""
    if len(keys) <= shown + 1:
        return " and ".join([", ".join(keys[:-1]), keys[-1]]) if len(keys) > 1 else "".join(keys)
    return f"{', '.join(keys[:shown])} and {len(keys) - shown:,} more"


def some(number: int, noun: str, plural: str = "") -> str:
    """`1 row`, `3 rows`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def verb(number: int, one: str, many: str) -> str:
    """The form of a verb for that many: `verb(n, "has", "have")`."""
    return one if number == 1 else many


def clear_call(keys: Sequence[str], partition_id: str) -> str:
    """The call that removes these keys; a long list is that of the finding."""
    named = repr(list(keys)) if len(keys) <= 3 else "list(finding.keys)"
    return f"tq.kv_clear(keys={named}, partition_id={partition_id!r})"
