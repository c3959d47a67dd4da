"""Settings as text: YAML that can be loaded again, and a table for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from rich.table import Table


def to_yaml(nested: Mapping[str, Any], origins: Mapping[str, str]) -> str:
    """Nested YAML in which each setting named in `origins` ends in a comment that says where its value came from."""
    return "\n".join(_lines(nested, origins, "")) + "\n"


def _lines(nested: Mapping[str, Any], origins: Mapping[str, str], prefix: str) -> Iterator[str]:
    indent = "  " * prefix.count(".")
    for name, value in nested.items():
        key = f"{prefix}{name}"
        comment = f"  # {origins[key]}" if key in origins else ""
        if isinstance(value, Mapping) and value:
            yield f"{indent}{inline(name)}:{comment}"
            yield from _lines(value, origins, f"{key}.")
        else:
            yield f"{indent}{inline(name)}: {inline(value)}{comment}"


def inline(value: Any) -> str:
    """One YAML value on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")


def table(rows: Mapping[str, tuple[Any, str]]) -> Table:
    """A rich Table of {dotted name: (value, origin)}; a rule between groups, plain defaults dimmed."""
    from rich.markup import escape
    from rich.table import Table

    result = Table("setting", "value", "from", title="settings of this run", title_justify="left")
    groups = [key.split(".", 1)[0] for key in rows]
    for (key, (value, origin)), group, following in zip(rows.items(), groups, [*groups[1:], ""], strict=True):
        style = "dim" if origin == "default" else "bold" if origin.startswith(("file", "override")) else None
        result.add_row(key, escape(inline(value)), escape(origin), style=style, end_section=group != following)
    return result
