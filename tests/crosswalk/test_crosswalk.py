"""The tables from our names to verl's: ours exist, verl's stand in the stored list, the list is what is installed.

Without verl the list stands for it (`python -m tests.crosswalk.verl_places --write` makes it); with verl, as in the
environment of the `ray` tests, the list itself is held against the package.
"""

from __future__ import annotations

import importlib
import re
from functools import cache

import pytest

import kitlib
from kitlib import inspector, lessons
from kitlib.config.schema import known_keys
from kitlib.contract import STAGES, TAGS, Stage
from kitlib.inspector import doctor
from kitlib.trainer.base import PPOTrainer
from tests.crosswalk import tables, verl_places

PUBLIC = (kitlib, lessons, inspector, doctor)  # where a name without a file is looked for
TABLES = list(tables.rows())


@cache
def ours_has(file: str, name: str) -> bool:
    """Is there such a file or folder, and in it (or, without a file, where a notebook would look) such a name?"""
    if not file:
        owners = [owner for owner in PUBLIC if _reaches(owner, name)]
        return bool(owners) or _reaches(_Trainer, name) or name in known_keys() or name in TAGS
    path = tables.ROOT / "kitlib" / file.removeprefix("kitlib/")
    if not path.exists() or path.is_dir():
        return path.exists() and not name
    dotted = ".".join(path.relative_to(tables.ROOT).with_suffix("").parts)
    return not name or _reaches(importlib.import_module(dotted), name)


class _Trainer:
    PPOTrainer = PPOTrainer


def _reaches(owner: object, name: str) -> bool:
    for part in name.split("."):
        if not hasattr(owner, part):
            return False
        owner = getattr(owner, part)
    return True


BASE, CORE = "`trainer/ppo/v1/trainer_base.py`", "`trainer/ppo/core_algos.py`"


@pytest.mark.parametrize(
    ("cells", "unknown"),
    [
        ([f"{BASE}, `PPOTrainer.fit`, `step`, `_step_once`"], []),
        ([f"{BASE}, `PPOTrainer.fit`", "`PPOTrainer._save_checkpoint`"], []),  # the file stands above
        ([f"{BASE}, `PPOTrainer.fits`"], ["PPOTrainer.fits"]),
        ([f"{BASE}, `PPOTrainer.fit`, `stop`"], ["stop"]),
        (["`trainer/ppo/v1/trainer_bases.py`"], ["trainer/ppo/v1/trainer_bases.py"]),
        ([BASE, f"{CORE}, `PPOTrainer.fit`"], ["PPOTrainer.fit"]),  # in another file than the cell says
        ([f"{CORE}, the functions under `@register_adv_est`, `agg_loss(...)`"], []),
        (["`trainer/ppo/v1/trainer_sync.py`, `trainer_colocate_async.py`"], []),  # beside the first file
        (["package TransferQueue 0.1.11, `interface.py`, `kv_batch_get`"], []),
        (["package TransferQueue 0.1.11, `interface.py`, `kv_batch_gets`"], ["kv_batch_gets"]),
        (["nothing of its own"], []),
    ],
)
def test_what_a_cell_means(cells: list[str], unknown: list[str]) -> None:
    listed = verl_places.stored()
    found = tables.places([(cell, "`agg_loss`") for cell in cells], lambda file, name: (file, name) in listed)
    assert [name for name, place in found if place is None] == unknown


@pytest.mark.parametrize(("beside", "is_known"), [("`agg_loss`", True), ("`aggregate`", False)])
def test_the_same_name_is_the_one_of_the_other_cell(beside: str, is_known: bool) -> None:
    listed = verl_places.stored()
    *_, (_, place) = tables.places([(f"{CORE}, the same name", beside)], lambda file, name: (file, name) in listed)
    assert (place is not None) is is_known


@pytest.mark.parametrize(
    ("cell", "is_known"),
    [
        ("`kitlib/algos/kl.py`, `get_kl_controller`", True),
        ("`kitlib/algos/advantage.py`, `get_kl_controllers`", False),
        ("`kitlib/trainer/timeline.py`, `save_all`", False),
        ("`explain_get`", True),
        ("`explain_gets`", False),
        ("`kitlib.strict`", True),
        ("`kitlib.strictly`", False),
        ("the tag `num_sessions`", True),
        ("`algos/`", True),
        ("`algorithms/`", False),
    ],
)
def test_what_we_have(cell: str, is_known: bool) -> None:
    assert all(place is not None for _, place in tables.places([(cell, "")], ours_has)) is is_known


def test_every_notebook_and_the_readme_has_its_table() -> None:
    where = {table[0].where for table in TABLES}
    views = {path.name for path in tables.NOTEBOOKS if "crosswalk(" in path.read_text(encoding="utf-8")}
    assert where | views == {path.name for path in tables.NOTEBOOKS} | {"README.md"}


@pytest.mark.parametrize("table", TABLES, ids=[table[0].where for table in TABLES])
def test_what_a_table_says_of_us_exists(table: list[tables.Row]) -> None:
    unknown = [name for name, place in tables.places([(row.here, row.there) for row in table], ours_has) if not place]
    assert not unknown


def test_what_tables_contract_and_docstrings_say_of_verl_is_the_stored_list() -> None:
    listed = verl_places.stored()
    found = list(verl_places.named(lambda file, name: (file, name) in listed))
    assert not [what for what, place in found if place is None]
    assert {place for _, place in found} == set(listed)


@pytest.mark.parametrize("stage", STAGES.values(), ids=list(STAGES))
def test_a_stage_names_the_line_in_verl_and_its_callers_here(stage: Stage) -> None:
    where = re.fullmatch(r"(?P<file>\S+), (?P<name>\S+?)(?: \(line (?P<line>\d+)\))?", stage.verl)
    first, last = verl_places.stored()[where["file"], where["name"]]
    if stage.name == "clear":  # a call in the middle of `fit`
        assert first < int(where["line"]) <= last
    elif where["line"]:
        assert int(where["line"]) == first
    assert _reaches(_Trainer, stage.called_by.split(",")[0])


def test_the_stored_list_is_what_the_installed_packages_have() -> None:
    if lacking := verl_places.missing_packages():
        pytest.skip(f"needs {lacking}")
    assert verl_places.installed() == verl_places.stored()
