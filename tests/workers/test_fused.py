"""Fused kernels: refused where they cannot run; what is asked of liger-kernel; on a GPU, the same numbers."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from kitlib.transfer_queue import padded
from kitlib.workers.actor import ActorRolloutRefWorker
from kitlib.workers.errors import WorkerError
from kitlib.workers.fused import use_fused_kernels
from tests.workers.conftest import make_batch, make_config, tiny_model, with_settings

FUSED = "model.use_fused_kernels=true"


def test_they_are_refused_on_a_cpu(make_worker: Callable[..., ActorRolloutRefWorker]) -> None:
    with pytest.raises(WorkerError, match="fused kernels run on a GPU, and the device is cpu: set it to false"):
        make_worker(FUSED)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(WorkerError, match="pip install liger-kernel"):
        use_fused_kernels(tiny_model(), torch.device("cuda"))


def test_the_library_is_asked_for_all_but_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, dict[str, Any]]] = []
    transformers, patch = ModuleType("liger_kernel.transformers"), ModuleType("liger_kernel.transformers.monkey_patch")
    transformers._apply_liger_kernel_to_instance = lambda model, **kwargs: asked.append((model, kwargs))  # type: ignore[attr-defined]
    patch.MODEL_TYPE_TO_APPLY_LIGER_FN = {"qwen3": None}  # type: ignore[attr-defined]
    for module in (ModuleType("liger_kernel"), transformers, patch):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    model = tiny_model()
    use_fused_kernels(model, torch.device("cuda"))
    assert asked == [(model, {"cross_entropy": False, "fused_linear_cross_entropy": False})]
    model.config.model_type = "of_my_own"
    with pytest.raises(WorkerError, match="liger-kernel has none for of_my_own"):
        use_fused_kernels(model, torch.device("cuda"))


@pytest.mark.gpu
def test_they_give_the_same_numbers() -> None:
    pytest.importorskip("liger_kernel", reason="liger-kernel is not installed")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    scores = []
    for overrides in ((), (FUSED,)):
        worker = ActorRolloutRefWorker(make_config(*overrides), tiny_model(), "cuda")
        scores.append(padded(worker.compute_log_prob(with_settings(make_batch()))["log_probs"]))
        worker.close()
    torch.testing.assert_close(scores[1], scores[0], rtol=2e-2, atol=2e-2)  # bfloat16
