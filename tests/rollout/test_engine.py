"""The decoder without its thread: every request gets what it would get alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import MistralConfig, MistralForCausalLM, PreTrainedModel

from kitlib.rollout import RolloutError, SamplingParams, TokenOutput
from kitlib.rollout.engine import DecodingEngine
from kitlib.rollout.slot_table import Request
from tests.rollout.conftest import ARCHITECTURES, greedy, log_probs_of, make_model, random_prompts

GREEDY = SamplingParams(temperature=0.0, logprobs=True)


@pytest.fixture(autouse=True)
def _inference_mode() -> Iterator[None]:
    with torch.inference_mode():
        yield


def make_engine(model: PreTrainedModel, eos: tuple[int, ...] = (), **options: int | bool) -> DecodingEngine:
    return DecodingEngine(model, eos, **({"max_model_len": 128, "max_num_seqs": 16} | options))


def ask(name: str, prompt: list[int], max_tokens: int, params: SamplingParams = GREEDY, key: int = 0) -> Request:
    return Request(name, np.array(prompt, dtype=np.int64), params, max_tokens, key)


def run(engine: DecodingEngine, *requests: Request) -> list[TokenOutput]:
    """All requests at once, to the end; outputs in the order of the requests."""
    for request in requests:
        engine.add(request)
    outputs = step_to_end(engine)
    return [outputs[request] for request in requests]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_rows_of_different_lengths_decode_together(architecture: str, attention: str) -> None:
    """Greedy tokens are those of model.generate, and the log-probs those of a full forward."""
    model, prompts = make_model(architecture, attention), random_prompts(12)
    outputs = run(make_engine(model), *(ask(str(i), prompt, 5 + i) for i, prompt in enumerate(prompts)))
    for i, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        ids = torch.tensor([prompt])
        whole = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=5 + i)
        assert output.token_ids == whole[0, len(prompt) :].tolist()
        assert output.stop_reason == "length"
        expected = log_probs_of(model, prompt, output.token_ids, temperature=1.0)
        torch.testing.assert_close(torch.tensor(output.log_probs), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_prompts_of_one_length_are_computed_without_a_mask(architecture: str, attention: str) -> None:
    """Then the model makes its own causal mask, from what the cache says about its length."""
    model = make_model(architecture, attention)
    prompts = [[i, 2 * i, 3, 4, 5] for i in range(4)]
    for outputs in (run(engine := make_engine(model), *asks(prompts, 6)), run(engine, *asks(prompts, 6))):
        assert [output.token_ids for output in outputs] == [greedy(model, prompt, 6) for prompt in prompts]


def asks(prompts: list[list[int]], max_tokens: int) -> list[Request]:
    return [ask(f"{prompt}", prompt, max_tokens) for prompt in prompts]


def test_bfloat16_runs_and_reports_float_log_probs() -> None:
    model = make_model().to(torch.bfloat16)
    (output,) = run(make_engine(model), ask("a", [1, 2, 3], 8))
    expected = log_probs_of(model, [1, 2, 3], output.token_ids, temperature=1.0)
    torch.testing.assert_close(torch.tensor(output.log_probs), expected, atol=0.1, rtol=0)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.8])
def test_log_probs_are_those_after_temperature(qwen3: PreTrainedModel, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, logprobs=True)
    prompts = random_prompts(6, seed=1)
    outputs = run(make_engine(qwen3), *(ask(str(i), p, 20, params, key=i) for i, p in enumerate(prompts)))
    for prompt, output in zip(prompts, outputs, strict=True):
        expected = log_probs_of(qwen3, prompt, output.token_ids, temperature)
        torch.testing.assert_close(torch.tensor(output.log_probs), expected, atol=1e-4, rtol=0)


# ---- random arrivals, lengths, parameters and aborts ---------------------------------------------------------------

SESSIONS = st.lists(
    st.tuples(
        st.integers(0, 25),  # arrives at this step
        st.integers(0, 5),  # prompt: few, so that some are shared
        st.integers(1, 12),  # max_tokens
        st.sampled_from([0.0, 1.0]),  # temperature
        st.booleans(),  # asks a second turn
    ),
    min_size=1,
    max_size=10,
)
FUZZ_PROMPTS = random_prompts(6, seed=2, longest=12)
EOS = 7


@cache
def fuzz_model() -> PreTrainedModel:
    return make_model(seed=3)


@cache
def alone(prompt: tuple[int, ...], max_tokens: int, temperature: float, key: int) -> TokenOutput:
    """What a request gets from an engine of its own."""
    params = SamplingParams(temperature=temperature, logprobs=True)
    return run(make_engine(fuzz_model(), (EOS,)), ask("alone", list(prompt), max_tokens, params, key))[0]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(
    sessions=SESSIONS,
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.sampled_from([1, 16, 8192]),
    enable_prefix_caching=st.booleans(),
    abort_at=st.one_of(st.none(), st.integers(0, 30)),
)
def test_nobody_notices_the_others(
    sessions: list[tuple[int, int, int, float, bool]],
    max_num_seqs: int,
    max_num_batched_tokens: int,
    enable_prefix_caching: bool,
    abort_at: int | None,
) -> None:
    engine = make_engine(
        fuzz_model(),
        (EOS,),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        enable_prefix_caching=enable_prefix_caching,
    )
    waiting = {
        ask(f"s{i}", FUZZ_PROMPTS[prompt], tokens, SamplingParams(temperature=temperature, logprobs=True), key=i): (
            at,
            again,
        )
        for i, (at, prompt, tokens, temperature, again) in enumerate(sessions)
    }
    step = 0
    while waiting or engine.has_work:
        for request in [request for request, (at, _) in waiting.items() if at <= step]:
            request.owner = waiting.pop(request)[1]
            engine.add(request)
        finished = engine.abort_all() if step == abort_at else engine.step()
        for request, output in finished:
            check(request, output)
            if (
                request.owner and output.stop_reason != "aborted"
            ):  # the next turn: what was said, and a word of the user
                prompt = [*request.prompt_ids.tolist(), *output.token_ids, 1, 2]
                waiting[ask(request.request_id, prompt, 4, request.params, request.noise_key)] = (step + 2, False)
        step += 1
    assert engine.num_active == 0


def check(request: Request, output: TokenOutput) -> None:
    params = request.params
    expected = alone(tuple(request.prompt_ids.tolist()), request.max_tokens, params.temperature, request.noise_key)
    if output.stop_reason == "aborted":
        assert output.token_ids == expected.token_ids[: len(output.token_ids)]
        assert len(output.token_ids) < len(expected.token_ids)
    else:
        assert output.token_ids == expected.token_ids
        assert output.stop_reason == expected.stop_reason == ("completed" if output.token_ids[-1] == EOS else "length")
    num_tokens = len(output.token_ids)
    assert (output.log_probs or []) == pytest.approx(expected.log_probs[:num_tokens], abs=1e-4)


def test_alone_is_the_plain_loop() -> None:
    """Anchors the reference of the test above."""
    for prompt in FUZZ_PROMPTS:
        assert alone(tuple(prompt), 12, 0.0, 0).token_ids == greedy(fuzz_model(), prompt, 12, eos=EOS)


# ---- stopping ------------------------------------------------------------------------------------------------------


def test_stop_tokens_end_a_request_and_are_part_of_its_output(qwen3: PreTrainedModel) -> None:
    plain = greedy(qwen3, [1, 2, 3], 12)
    eos, stop = plain[3], plain[5]
    assert plain.index(eos) == 3
    assert plain.index(stop) == 5
    to_eos, past_eos, to_stop = run(
        make_engine(qwen3, (eos,)),
        ask("a", [1, 2, 3], 12),
        ask("b", [1, 2, 3], 12, SamplingParams(temperature=0.0, ignore_eos=True)),
        ask("c", [1, 2, 3], 12, SamplingParams(temperature=0.0, ignore_eos=True, stop_token_ids=(stop,))),
    )
    assert (to_eos.token_ids, to_eos.stop_reason) == (plain[:4], "completed")
    assert (past_eos.token_ids, past_eos.stop_reason) == (plain, "length")
    assert (to_stop.token_ids, to_stop.stop_reason) == (plain[:6], "completed")
    assert past_eos.log_probs is None  # not asked for


def test_repetition_penalty_counts_prompt_and_output(qwen3: PreTrainedModel) -> None:
    params = SamplingParams(temperature=0.0, repetition_penalty=1e6)
    (output,) = run(make_engine(qwen3), ask("a", [1, 2, 3], 20, params))
    assert len({1, 2, 3, *output.token_ids}) == 23  # nothing comes twice


# ---- computing less ------------------------------------------------------------------------------------------------


@pytest.fixture
def computed(qwen3: PreTrainedModel) -> Iterator[list[tuple[int, int]]]:
    """Shape [num_rows, width] of every forward."""
    shapes: list[tuple[int, int]] = []
    hook = qwen3.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    yield shapes
    hook.remove()


def test_a_shared_prompt_is_computed_once(qwen3: PreTrainedModel, computed: list) -> None:
    prompts = [[1, 2, 3, 4], [5, 6]]
    outputs = run(make_engine(qwen3), *(ask(str(i), prompts[i % 2], 3) for i in range(10)))
    assert computed == [(2, 4), (10, 1), (10, 1)]
    for i, output in enumerate(outputs):
        assert output.token_ids == greedy(qwen3, prompts[i % 2], 3)
        assert output.extra_fields["num_cached_tokens"] == (0 if i < 2 else len(prompts[i % 2]))


def test_requests_that_wait_together_join_as_one_block_within_the_token_budget(
    qwen3: PreTrainedModel, computed: list
) -> None:
    run(make_engine(qwen3, max_num_batched_tokens=12), *(ask(str(i), [i] * 4, 1) for i in range(7)))
    assert computed == [(3, 4), (3, 4), (1, 4)]


def test_the_next_turn_computes_only_what_is_new(qwen3: PreTrainedModel, computed: list) -> None:
    engine = make_engine(qwen3)
    first, _ = run(engine, ask("a", [1, 2, 3], 4), ask("b", [4, 5, 6, 7], 6))
    prompt = [1, 2, 3, *first.token_ids, 8, 9]
    computed.clear()
    (second,) = run(engine, ask("a", prompt, 2))
    assert computed == [(1, 3), (1, 1)]  # the last token of the first turn was sampled but never computed
    assert second.extra_fields["num_cached_tokens"] == 6
    assert second.token_ids == greedy(qwen3, prompt, 2)


def test_a_turn_that_rewrites_history_computes_from_the_change_on(qwen3: PreTrainedModel, computed: list) -> None:
    engine = make_engine(qwen3)
    run(engine, ask("a", [1, 2, 3, 4, 5], 4))
    computed.clear()
    (output,) = run(engine, ask("a", [1, 2, 9, 4, 5], 1))
    assert computed == [(1, 3)]
    assert output.token_ids == greedy(qwen3, [1, 2, 9, 4, 5], 1)


def test_new_weights_make_kept_prefixes_worthless() -> None:
    model, other = make_model(seed=0), make_model(seed=1)
    engine = make_engine(model)
    run(engine, ask("a", [1, 2, 3], 4))
    engine.load_weights(other.state_dict(), global_steps=1)
    (output,) = run(engine, ask("a", [1, 2, 3, 4], 4))
    assert output.token_ids == greedy(other, [1, 2, 3, 4], 4)
    assert output.extra_fields["num_cached_tokens"] == 0


def test_the_cache_can_be_freed_and_comes_back(qwen3: PreTrainedModel) -> None:
    engine = make_engine(qwen3)
    (before,) = run(engine, ask("a", [1, 2, 3], 4))
    engine.free_cache()
    assert not engine.runner.cache.layers
    (after,) = run(engine, ask("a", [1, 2, 3], 4))
    assert before.token_ids == after.token_ids


# ---- weights and versions ------------------------------------------------------------------------------------------


def test_versions_span_a_change_of_weights() -> None:
    model, other = make_model(seed=0), make_model(seed=1)
    engine = make_engine(model, global_steps=3)
    request = ask("a", [1, 2, 3], 6)
    engine.add(request)
    for _ in range(2):
        engine.step()
    engine.load_weights(other.state_dict(), global_steps=4)
    output = step_to_end(engine)[request]
    assert output.extra_fields["min_global_steps"] == 3
    assert output.extra_fields["max_global_steps"] == output.extra_fields["global_steps"] == 4
    assert output.token_ids[:2] == greedy(make_model(seed=0), [1, 2, 3], 2)


def step_to_end(engine: DecodingEngine) -> dict[Request, TokenOutput]:
    outputs: dict[Request, TokenOutput] = {}
    while engine.has_work:
        outputs.update(engine.step())
    return outputs


def test_an_aborted_output_has_the_version_of_its_last_token() -> None:
    model = make_model(seed=0)
    engine = make_engine(model, global_steps=3)
    engine.add(ask("a", [1, 2, 3], 6))
    engine.step()
    engine.load_weights(make_model(seed=1).state_dict(), global_steps=4)
    engine.add(ask("b", [1, 2, 3], 6))
    (_, started), (_, never_started) = engine.abort_all()
    assert started.extra_fields["max_global_steps"] == 3
    assert len(started.token_ids) == 1
    assert (never_started.token_ids, never_started.stop_reason) == ([], "aborted")
    assert never_started.extra_fields["global_steps"] == 4


def test_weights_that_are_not_finite_are_reported() -> None:
    model = make_model()
    weights = {name: torch.full_like(tensor, torch.nan) for name, tensor in model.state_dict().items()}
    engine = make_engine(model)
    engine.load_weights(weights, global_steps=9)
    with pytest.raises(RolloutError, match="NaN logits for request 'a' at weight version 9"):
        run(engine, ask("a", [1, 2], 2))


# ---- models that cannot be served ----------------------------------------------------------------------------------


def test_a_sliding_window_shorter_than_the_text_is_refused() -> None:
    small = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    model = MistralForCausalLM(MistralConfig(**small, num_attention_heads=4, num_key_value_heads=2, sliding_window=64))
    with pytest.raises(RolloutError, match="window of 64 tokens.*max_model_len to 64"):
        make_engine(model, max_model_len=65)
    prompts = random_prompts(3)
    outputs = run(make_engine(model.eval(), max_model_len=64), *(ask(str(i), p, 5) for i, p in enumerate(prompts)))
    assert [output.token_ids for output in outputs] == [greedy(model, prompt, 5) for prompt in prompts]


def test_more_positions_than_the_model_has_are_refused(qwen3: PreTrainedModel) -> None:
    with pytest.raises(RolloutError, match="max_model_len 257 is above the 256 positions"):
        make_engine(qwen3, max_model_len=257)
