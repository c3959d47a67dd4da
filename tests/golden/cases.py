"""Cases computed by verl 0.9.1 (see tests/golden/README.md): how to find one and how to compare with it."""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

GOLDEN = Path(os.environ.get("KITLIB_GOLDEN", Path(__file__).parent))  # another set: see regenerate.py


@lru_cache(maxsize=1)
def arrays() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "verl_golden.npz", allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


@dataclass(frozen=True)
class Case:
    name: str
    function: str
    inputs: dict[str, str]
    args: dict[str, Any]
    outputs: dict[str, str]
    metrics: dict[str, Any]

    def tensors(self) -> dict[str, Tensor]:
        """Fresh copies of the inputs, by argument name."""
        return {name: torch.from_numpy(arrays()[path].copy()) for name, path in self.inputs.items()}

    def expected(self, output: str) -> Tensor:
        return torch.from_numpy(np.asarray(arrays()[self.outputs[output]]))


@lru_cache(maxsize=1)
def all_cases() -> tuple[Case, ...]:
    stored = json.loads(gzip.decompress((GOLDEN / "verl_golden.json.gz").read_bytes()))
    return tuple(Case(**{"metrics": {}, **case}) for case in stored["cases"])


def cases(*prefixes: str) -> list[Any]:
    """The cases whose name starts with one of `prefixes`, as pytest parameters; no such case is an error."""
    found = [pytest.param(case, id=case.name) for case in all_cases() if case.name.startswith(prefixes)]
    assert found, f"no golden case starts with {prefixes}"
    return found


def assert_close(actual: Tensor, expected: Tensor, what: str, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    torch.testing.assert_close(
        actual.detach().to(expected.dtype), expected, rtol=rtol, atol=atol, msg=lambda text: f"{what}: {text}"
    )


def assert_metrics(actual: dict[str, float], expected: dict[str, float]) -> None:
    assert set(actual) == set(expected)
    for name, value in expected.items():
        assert actual[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name
