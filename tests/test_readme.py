"""The Python of the README runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_there_is_python_in_the_readme() -> None:
    assert BLOCKS


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_a_block_runs_and_leaves_the_queue_empty(block: str) -> None:
    names: dict[str, object] = {}
    exec(compile(block, str(README), "exec"), names)
    assert names["trainer"].tq.kv_list("train") == {"train": {}}
