"""The table of settings: every one, grouped, with its value and origin."""

from __future__ import annotations

import io

from rich.console import Console

from kitlib.config import load_config
from kitlib.config.schema import known_keys


def rendered(table: object) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_table_lists_every_setting_once_with_verls_groups_first() -> None:
    table = load_config().table()
    names = list(table.columns[0].cells)
    assert names == list(known_keys())
    groups = list(dict.fromkeys(name.split(".")[0] for name in names))
    assert groups[:5] == ["algorithm", "actor_rollout_ref", "critic", "reward", "trainer"]


def test_table_tells_value_and_origin() -> None:
    text = rendered(load_config(["data.train_files=[a.parquet]", "data.train_batch_size=32"]).table())
    line = next(line for line in text.splitlines() if "data.train_batch_size" in line)
    assert "32" in line
    assert "override" in line
    assert "[a.parquet]" in text  # brackets are no markup


def test_table_of_changes_lists_only_what_was_asked_for() -> None:
    table = load_config(["data.train_batch_size=32"]).table(only_changed=True)
    assert list(table.columns[0].cells) == ["data.train_batch_size"]
