"""Drawing tokens: the right distribution, the right log-probability, and the same draw whoever the neighbours are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import LogitsProcessorList, RepetitionPenaltyLogitsProcessor, TopKLogitsWarper, TopPLogitsWarper

from kitlib.rollout import RolloutError, SamplingParams
from kitlib.rollout.sampling import SamplingControls, noise_key, sample, uniforms

CPU = torch.device("cpu")


def draw(logits: torch.Tensor, params: list[SamplingParams], uniform: torch.Tensor, seen: torch.Tensor | None = None):
    return sample(logits, SamplingControls.of(params, logits.shape[1], CPU), uniform, seen)


def draws_of_one_row(logits: torch.Tensor, params: SamplingParams, num_draws: int = 20_000):
    keys = np.full(num_draws, noise_key(7), dtype=np.uint64)
    uniform = torch.from_numpy(uniforms(keys, np.arange(num_draws)))
    return draw(logits.expand(num_draws, -1), [params] * num_draws, uniform)


@pytest.mark.parametrize(
    ("params", "warpers"),
    [
        (SamplingParams(), []),
        (SamplingParams(temperature=0.5), []),
        (SamplingParams(top_k=3), [TopKLogitsWarper(3)]),
        (SamplingParams(top_p=0.7), [TopPLogitsWarper(0.7)]),
        (SamplingParams(temperature=2.0, top_k=5, top_p=0.8), [TopKLogitsWarper(5), TopPLogitsWarper(0.8)]),
    ],
)
def test_tokens_follow_the_filtered_distribution_and_report_it(params: SamplingParams, warpers: list) -> None:
    logits = torch.randn(1, 12, generator=torch.Generator().manual_seed(1)) * 2
    expected = LogitsProcessorList(warpers)(None, logits / params.temperature).softmax(-1)[
        0
    ]  # transformers' own filters
    token_ids, log_probs = draws_of_one_row(logits, params)
    share = torch.bincount(token_ids, minlength=12) / len(token_ids)
    assert (share - expected).abs().max() < 0.015  # four standard errors of a share of 0.5
    assert (share[expected == 0] == 0).all()
    torch.testing.assert_close(log_probs, expected.log()[token_ids], atol=1e-5, rtol=0)


def test_greedy_takes_the_best_token_and_reports_temperature_one() -> None:
    logits = torch.randn(5, 12, generator=torch.Generator().manual_seed(2))
    token_ids, log_probs = draw(logits, [SamplingParams(temperature=0.0, top_k=2)] * 5, torch.rand(5).double())
    assert token_ids.tolist() == logits.argmax(-1).tolist()
    torch.testing.assert_close(log_probs, logits.log_softmax(-1).max(-1).values)


def test_mixed_rows_get_what_they_get_alone() -> None:
    rows = [
        SamplingParams(),
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.3, top_p=0.5),
        SamplingParams(top_k=2, repetition_penalty=3.0),
        SamplingParams(temperature=0.0, repetition_penalty=3.0),
    ]
    generator = torch.Generator().manual_seed(3)
    logits, seen = torch.randn(5, 12, generator=generator), torch.rand(5, 12, generator=generator) < 0.5
    uniform = torch.rand(5, generator=generator, dtype=torch.float64)
    together_ids, together_log_probs = draw(logits, rows, uniform, seen)
    for i, params in enumerate(rows):
        alone_ids, alone_log_probs = draw(logits[i : i + 1], [params], uniform[i : i + 1], seen[i : i + 1])
        assert alone_ids[0] == together_ids[i], params
        torch.testing.assert_close(alone_log_probs[0], together_log_probs[i])


def test_repetition_penalty_is_transformers() -> None:
    logits = torch.randn(1, 12, generator=torch.Generator().manual_seed(4))
    context = torch.tensor([[1, 5, 5, 11]])
    seen = torch.zeros(1, 12, dtype=torch.bool)
    seen[0, context[0]] = True
    expected = RepetitionPenaltyLogitsProcessor(1.7)(context, logits.clone()).log_softmax(-1)
    token_ids, log_probs = draw(logits, [SamplingParams(repetition_penalty=1.7)], torch.tensor([0.4]).double(), seen)
    torch.testing.assert_close(log_probs, expected[0, token_ids])


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_a_token_of_probability_zero_is_never_drawn(uniform: float) -> None:
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]])
    token_ids, log_probs = draw(logits, [SamplingParams()], torch.tensor([uniform], dtype=torch.float64))
    assert token_ids.item() == (1 if uniform == 0 else 3)
    assert log_probs.item() == pytest.approx(np.log(0.5))


def test_a_large_vocabulary_keeps_its_tail() -> None:
    """One token takes half of the mass and comes first; in float32 the 150,000 others would lose a part of the rest."""
    num_others = 150_000
    logits = torch.full((1, num_others + 1), -float(np.log(2 * num_others)))
    logits[0, 0] = np.log(0.5)
    token_ids, _ = draw(logits, [SamplingParams()], torch.tensor([0.75], dtype=torch.float64))
    assert token_ids.item() == pytest.approx(num_others / 2, abs=50)


def test_noise_depends_on_key_and_position_and_is_uniform() -> None:
    keys = np.array([noise_key(0, i) for i in range(200)], dtype=np.uint64)
    numbers = np.stack([uniforms(keys, np.full(200, position)) for position in range(200)])
    assert len(np.unique(numbers)) == numbers.size
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts = np.histogram(numbers, bins=20, range=(0, 1))[0]
    assert ((counts - 2000) ** 2 / 2000).sum() < 50  # chi-square, 19 degrees of freedom: above 50 once in 7,000
    assert abs(np.corrcoef(numbers[:-1].ravel(), numbers[1:].ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(numbers[:, :-1].ravel(), numbers[:, 1:].ravel())[0, 1]) < 0.02


@pytest.mark.parametrize(
    ("values", "offender"),
    [
        ({"temprature": 1.0}, "temprature"),
        ({"temperature": -1.0}, "temperature=-1.0"),
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"top_k": -2}, "top_k=-2"),
        ({"repetition_penalty": 0.0}, "repetition_penalty=0.0"),
        ({"max_tokens": 4, "max_new_tokens": 5}, "max_new_tokens"),
    ],
)
def test_bad_parameters_are_named(values: dict, offender: str) -> None:
    with pytest.raises(RolloutError, match=offender):
        SamplingParams.parse(values)


def test_verl_parameters_are_understood() -> None:
    values = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}
    assert SamplingParams.parse(values) == SamplingParams(logprobs=True)
    assert SamplingParams.parse({"max_new_tokens": 5}).max_tokens == 5
