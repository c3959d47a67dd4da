"""The head slice by slice: the same numbers and gradients as whole logits, which never exist."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kitlib.workers.engine import FSDPEngine
from kitlib.workers.engine.chunked_head import ChunkedScores
from kitlib.workers.engine.scoring import TokenScorer, entropy_from_logits
from kitlib.workers.rows import Rows
from tests.workers.conftest import VOCAB_SIZE, make_batch, make_config, tiny_model
from tests.workers.test_engine import CPU, other_architectures


def inputs(bias: bool) -> tuple[Any, ...]:
    torch.manual_seed(0)
    hidden, weight = torch.randn(5, 3, dtype=torch.float64), torch.randn(11, 3, dtype=torch.float64)
    return hidden, weight, torch.randn(11, dtype=torch.float64) if bias else None, torch.tensor([0, 10, 3, 4, 7])


def whole(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, temperature: float
) -> tuple[Tensor, ...]:
    logits = torch.nn.functional.linear(hidden, weight, bias) / temperature
    log_p = logits.log_softmax(-1)
    return log_p.gather(1, target[:, None])[:, 0], entropy_from_logits(logits), log_p.exp().square().sum(-1)


@pytest.mark.parametrize("chunk", [1, 4, 11, 100])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_numbers_of_any_slice_are_those_of_the_whole(chunk: int, bias: bool, temperature: float) -> None:
    hidden, weight, bias_, target = inputs(bias)
    found = ChunkedScores.apply(hidden, weight, bias_, target, temperature, chunk)
    for one, other in zip(found, whole(hidden, weight, bias_, target, temperature), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_huge_logits_do_not_overflow() -> None:
    hidden, weight, _, target = inputs(bias=False)
    found = ChunkedScores.apply(1e4 * hidden.float(), weight.float(), None, target, 1.0, 4)
    assert all(torch.isfinite(values).all() for values in found)


def test_gradients_in_float64() -> None:
    hidden, weight, bias, target = inputs(bias=True)
    variables = [value.requires_grad_() for value in (hidden, weight, bias)]

    def scores(*values: Tensor) -> tuple[Tensor, ...]:
        return ChunkedScores.apply(*values, target, 0.7, 4)[:2]

    assert torch.autograd.gradcheck(scores, variables)


@pytest.mark.parametrize("make_model", other_architectures())
def test_an_engine_gives_the_same_scores_and_gradients_either_way(make_model: Any) -> None:
    rows = Rows.from_tensordict(make_batch(), (), CPU)
    chosen, results = rows.response_grid(), []
    for chunk in (VOCAB_SIZE, 7):
        torch.manual_seed(0)
        engine = FSDPEngine(
            make_model(),
            make_config().actor_rollout_ref.actor.optim,
            CPU,
            make_scorer=partial(TokenScorer, vocab_chunk=chunk),
        )
        try:
            scores = engine.forward(rows, chosen, 0.7, True, True)
            engine.backward(scores.log_probs.sum() + scores.entropy.sum(), is_last_micro_batch=True)
            gradients = {name: p.grad.to_local().clone() for name, p in engine.model.named_parameters()}
            results.append((engine.score_tokens.is_chunked, scores.columns(), gradients))
        finally:
            engine.close()
    (_, plain, plain_gradients), (is_chunked, sliced, gradients) = results
    assert is_chunked == (not _caps_logits(make_model))
    for name in plain:
        torch.testing.assert_close(sliced[name], plain[name], rtol=1e-4, atol=1e-5)
    for name in plain_gradients:
        torch.testing.assert_close(gradients[name], plain_gradients[name], rtol=1e-3, atol=1e-4)


def _caps_logits(make_model: Any) -> bool:
    return getattr(make_model().config, "final_logit_softcapping", None) is not None


class LargestTensor(TorchDispatchMode):
    """Remembers the largest last-but-one by last shape that an operation has made."""

    def __init__(self) -> None:
        super().__init__()
        self.widest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        for value in output if isinstance(output, (tuple, list)) else (output,):
            if isinstance(value, Tensor) and value.dim() >= 2 and value.shape[-1] > self.widest:
                self.widest = value.shape[-1]
        return output


def test_no_tensor_is_as_wide_as_the_vocabulary() -> None:
    rows = Rows.from_tensordict(make_batch(), (), CPU)
    widths = {}
    for chunk in (VOCAB_SIZE * 100, 500):
        model = tiny_model(vocab_size=VOCAB_SIZE * 100)
        scorer = TokenScorer(model, vocab_chunk=chunk)
        with LargestTensor() as seen:
            scores = scorer(rows, rows.response_grid(), 1.0, True)
            (scores.log_probs.sum() + scores.entropy.sum()).backward()
        widths[chunk] = seen.widest
    assert widths == {VOCAB_SIZE * 100: VOCAB_SIZE * 100, 500: 500}


def test_the_model_still_gives_logits_outside_of_a_scoring_call() -> None:
    model = tiny_model()
    expected = model(input_ids=torch.arange(6)[None]).logits
    assert TokenScorer(model, vocab_chunk=7).is_chunked
    assert torch.equal(model(input_ids=torch.arange(6)[None]).logits, expected)
