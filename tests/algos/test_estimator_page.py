"""docs/estimators.md says what the registry says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from kitlib.algos.advantage import ADV_ESTIMATOR_REGISTRY
from kitlib.config.checks import ADV_ESTIMATORS

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    if not DOCS.is_dir():
        pytest.skip("the docs are not part of this installation")
    spec = importlib.util.spec_from_file_location("make_estimators", DOCS / "make_estimators.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_in_step_with_the_registry(maker: ModuleType) -> None:
    assert maker.PAGE.read_text(encoding="utf-8") == maker.page(), "run python docs/make_estimators.py"


def test_every_estimator_of_verl_has_a_row_and_a_formula_or_a_sibling(maker: ModuleType) -> None:
    rows = {name: maker.row(name) for name in ADV_ESTIMATORS}
    assert set(rows) <= set(ADV_ESTIMATOR_REGISTRY)
    for name, row in rows.items():
        assert " = " in row or "As " in row, name


def test_verls_v1_cannot_feed_four_of_them(maker: ModuleType) -> None:
    unusable = {name for name in ADV_ESTIMATORS if maker.row(name).split(" | ")[4] == "no"}
    assert unusable == {"remax", "gdpo", "optimal_token_baseline", "tir_optimal_token_baseline"}
