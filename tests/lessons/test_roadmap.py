"""The map shows every stage of the contract once, numbers those that run, and lights one."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from kitlib.config import load_config
from kitlib.contract import STAGES, needs
from kitlib.inspector import UnknownStageError
from kitlib.lessons import roadmap
from kitlib.lessons.roadmap import _LIT, LANES, ONCE, QUEUE


def test_every_stage_of_the_contract_once_and_in_its_order() -> None:
    assert [name for names in LANES.values() for name in names] == list(STAGES)


def test_the_running_stages_are_numbered_in_order() -> None:
    config = load_config(["trainer.val_before_train=false", "trainer.test_freq=-1"])
    boxes = [box for boxes in roadmap(config=config).lanes.values() for box in boxes if box.name in STAGES]
    running = [box for box in boxes if needs(box.name, config).runs]
    assert [box.number for box in running] == list(range(1, len(running) + 1))
    assert all(box.number is None and not box.runs for box in boxes if box not in running)
    assert "validate" not in {box.name for box in running}


@pytest.mark.parametrize("stage", [*STAGES, *ONCE, QUEUE])
def test_one_box_is_lit(stage: str) -> None:
    drawn = roadmap(stage)
    assert drawn.svg().count(_LIT) == 1
    assert repr(drawn).count("[") == 2  # the lit one, and the legend


def test_the_bare_map_lights_nothing() -> None:
    assert _LIT not in roadmap().svg()


def test_the_picture_is_well_formed_and_carries_its_text() -> None:
    drawn = roadmap("sample")
    root = ET.fromstring(drawn.svg())
    assert "[3 sample]" in root.attrib["aria-label"]
    bundle = drawn._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"}
    texts = {element.text for element in root.iter() if element.text}
    assert {"▶ 3 sample", "compute_advantage", "TaskRunner.run"} <= texts


def test_an_unknown_stage_is_named_with_near_ones() -> None:
    with pytest.raises(UnknownStageError, match="compute_advantage"):
        roadmap("compute_advantages")
