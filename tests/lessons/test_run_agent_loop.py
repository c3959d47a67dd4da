"""Notebook 04: its checks name the mistake, its faults are really there, its loops do what the prose says of them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from kitlib.agent_loop import AgentLoopWorkerTQ, ToolAgentLoop
from kitlib.agent_loop.calculator import calculator
from kitlib.agent_loop.ledger import TaskLedger
from kitlib.lessons import Answer, FaultError, LessonError, captured_log
from kitlib.lessons.run_agent_loop import (
    KilledSessions,
    TurnByTurnLoop,
    check_mask,
    check_shares,
    kill_sessions,
    log_prob_of,
    request_lives,
    send_to,
    shares,
    train_the_tool,
    wait_for_sessions,
)
from kitlib.models import load_causal_lm
from kitlib.paths import data_path
from kitlib.reward import RewardLoopWorker
from kitlib.rollout.request_log import RequestRecord
from kitlib.transfer_queue import KVBatchMeta, TransferQueue
from tests.agent_loop.fakes import TOKENIZER, FakeClient, batch_of, config, row

TOY = [0.5, 0.3, 0.2]
CALL, RIGHT = "<tool_call>12*59</tool_call>", "####708"
TURNS = (("model", [5, 5, 3]), ("tool", [7, 8]), ("model", [9]))  # mask 1 1 1 0 0 1


def words(answer: Answer) -> str:
    assert answer.ok is False
    return "\n".join(answer.says)


class TestShares:
    @pytest.mark.parametrize(
        ("params", "expected"),
        [
            ({}, TOY),
            ({"temperature": 0.5}, [0.658, 0.237, 0.105]),
            ({"temperature": 0.0}, [1.0, 0.0, 0.0]),
            ({"top_k": 2}, [0.625, 0.375, 0.0]),
            ({"top_p": 0.6}, [0.625, 0.375, 0.0]),
            ({"top_p": 0.5}, [1.0, 0.0, 0.0]),
            ({"top_p": 0.9}, TOY),
        ],
    )
    def test_they_are_those_of_the_sampler(self, params: dict[str, Any], expected: list[float]) -> None:
        assert shares(TOY, **params) == pytest.approx(expected, abs=0.001)

    @pytest.mark.parametrize(
        "answer",
        [
            [0.625, 0.375, 0.0],
            (5 / 8, 3 / 8, 0),
            torch.tensor([0.625, 0.375, 0.0]),
            np.array([0.625, 0.375, 0.0]),
            [np.float32(0.625), torch.tensor(0.375), 0],
            [0.63, 0.38, 0],
        ],
    )
    def test_right(self, answer: Any) -> None:
        assert check_shares(answer, TOY, top_p=0.6).ok is True

    @pytest.mark.parametrize("answer", [..., [..., 0.3, 0.2]])
    def test_open(self, answer: Any) -> None:
        assert check_shares(answer, TOY, top_p=0.6).ok is None

    @pytest.mark.parametrize(
        ("answer", "mistake"),
        [
            (TOY, "that is the whole distribution"),
            ([0.5, 0.3, 0.0], "scale what is left"),
            ([1.0, 0.0, 0.0], "one token too few: the token that crosses 0.6 stays"),
            ([0.6, 0.3, 0.1], "one token too many"),
            ([0.6, 0.4, 0.0], "with wrong shares"),
            ([0.0, 0.6, 0.4], "not the right ones: the most likely stay"),
            ([62.5, 37.5, 0.0], "scaled to a sum of 1, and yours add up to 100"),
            ("0.625, 0.375, 0", "a list of 3 numbers"),
            ([0.625, 0.375], "a list of 3 numbers"),
            (0.625, "a list of 3 numbers"),
            ({0.625, 0.375, 0.0}, "a list of 3 numbers"),
            ([0.625, float("nan"), 0.0], "a list of 3 numbers"),
        ],
    )
    def test_wrong(self, answer: Any, mistake: str) -> None:
        assert mistake in words(check_shares(answer, TOY, top_p=0.6))


class TestMask:
    @pytest.mark.parametrize(
        "answer",
        [
            [1, 1, 1, 0, 0, 1],
            torch.tensor([1, 1, 1, 0, 0, 1]),
            np.array([1, 1, 1, 0, 0, 1]),
            [np.int64(1)] * 3 + [torch.tensor(0)] * 2 + [1.0],
            [True] * 3 + [0, 0, 1],
        ],
    )
    def test_right(self, answer: Any) -> None:
        assert check_mask(answer, *TURNS).ok is True

    def test_open(self) -> None:
        assert check_mask(..., *TURNS).ok is None

    @pytest.mark.parametrize(
        ("answer", "mistake"),
        [
            ([1] * 6, "trained to write what the tool has written"),
            ([0, 0, 0, 1, 1, 0], "the other way round"),
            ([0, 0, 0, 0, 0, 1], "the call is meant for the tool, but the model wrote it"),
            ([1] * 4, "tokens of the tool are part of the response"),
            ([0, 0, 0, 0, 1, 1, 1, 0, 0, 1], "one for each token of the response, none for the prompt"),
            ([0] * 6, "with only zeros, nothing would be trained"),
            ([[1, 1, 1], [0, 0], [1]], "one list of 0 and 1"),
            ([1, 1], "2 numbers for 6 tokens: one for each token of the response"),
            ([1, 1, 1, 1, 0, 1], "token 3 of the response (the first is token 0) was written by the tool"),
            ([1, 1, 0, 0, 0, 1], "token 2 of the response (the first is token 0) was written by the model"),
            ([2, 1, 1, 0, 0, 1], "one list of 0 and 1"),
            ("111001", "one list of 0 and 1"),
        ],
    )
    def test_wrong(self, answer: Any, mistake: str) -> None:
        assert mistake in words(check_mask(answer, *TURNS))


def test_the_log_prob_of_a_response_is_that_of_its_tokens() -> None:
    model = load_causal_lm(data_path("models/add"))
    both = log_prob_of(model, [2, 5, 11], [14, 15])
    assert both == pytest.approx(log_prob_of(model, [2, 5, 11], [14]) + log_prob_of(model, [2, 5, 11, 14], [15]))
    assert both < 0


def run(batch: Any, num_sessions: int = 2) -> TransferQueue:
    """What the queue holds after the sessions of a batch, which call the tool once and are right."""
    tq, settings = TransferQueue(), config(f"actor_rollout_ref.rollout.n={num_sessions}")

    async def go() -> None:
        worker = AgentLoopWorkerTQ(
            settings, tq, FakeClient(CALL, RIGHT), TOKENIZER, RewardLoopWorker(settings, TOKENIZER)
        )
        await worker.generate_sequences(batch)
        while tasks := [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]:
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(go())
    return tq


def prompts(num_prompts: int = 4) -> Any:
    rows = [row(agent_name="tool_agent") for _ in range(num_prompts)]
    return batch_of(rows, [f"u{i}" for i in range(num_prompts)])


class TestSeveralOutputs:
    def test_a_row_for_each_turn_with_the_reward_of_the_last(self) -> None:
        tq = run(send_to(prompts(1), "turn_by_turn"), num_sessions=1)
        rows = tq.kv_batch_get(["u0_0_0", "u0_0_1"], "train")
        texts = [TOKENIZER.decode(ids) for ids in rows["responses"].unbind()]
        assert texts == [f"{CALL}<|im_end|>", f"{RIGHT}<|im_end|>"]
        assert [scores.sum().item() for scores in rows["rm_scores"].unbind()] == [1.0, 1.0]
        assert all(mask.all() for mask in rows["response_mask"].unbind())
        whole = run(prompts(1), num_sessions=1).kv_batch_get(["u0_0_0"], "train")[0]
        assert torch.equal(rows["input_ids"].unbind()[-1], whole["input_ids"])

    def test_without_log_probs(self) -> None:
        loop = TurnByTurnLoop(config(), FakeClient(RIGHT), TOKENIZER)
        output = asyncio.run(ToolAgentLoop(config(), FakeClient(RIGHT), TOKENIZER).run({}, **row()))
        (turn,) = asyncio.run(loop.run({}, **row()))
        assert (turn.response_ids, turn.response_logprobs) == (output.response_ids, output.response_logprobs)


class TestKilledSessions:
    @pytest.fixture
    def fault(self) -> KilledSessions:
        return kill_sessions(prompts(), num_sessions=3, seed=1)

    @pytest.fixture
    def healthy(self, fault: KilledSessions) -> str:
        return next(uid for uid in ("u0", "u1", "u2", "u3") if uid not in (fault.uid, fault.lost_uid))

    def test_they_die_and_nobody_else_does(self, fault: KilledSessions, healthy: str) -> None:
        with captured_log():
            listing = run(fault.prompts, num_sessions=3).kv_list("train")["train"]
        keys = {key for key in listing if "_" in key}
        assert listing[fault.uid]["status"] == listing[fault.lost_uid]["status"] == "failure"
        assert listing[healthy]["status"] == "finished"
        assert len(keys) == 2 * 3 + 2
        assert f"{fault.uid}_{fault.session_id}_0" not in keys
        assert not any(key.startswith(fault.lost_uid) for key in keys)

    def test_right_and_open(self, fault: KilledSessions) -> None:
        assert fault.check(fault.uid, fault.session_id).ok is True
        assert fault.check([f" {fault.uid}"], np.int64(fault.session_id)).ok is True
        assert fault.check(..., ...).ok is None
        assert fault.check(fault.uid, ...).ok is None

    def test_wrong(self, fault: KilledSessions, healthy: str) -> None:
        assert "is finished: each of its sessions has a row" in words(fault.check(healthy, fault.session_id))
        assert "it lost all 3 sessions" in words(fault.check(fault.lost_uid, fault.session_id))
        assert "is short for 4 uids" in words(fault.check("u", fault.session_id))
        assert "no prompt has the uid 'u9'" in words(fault.check("u9", fault.session_id))
        assert "no prompt has the uid ''" in words(fault.check("", fault.session_id))
        other = (fault.session_id + 1) % 3
        assert f"session {other} of that prompt has a row" in words(fault.check(fault.uid, other))
        for nonsense in (3, -1, "1", True, f"{fault.uid}_1_0"):
            assert "a session is a whole number from 0 to 2" in words(fault.check(fault.uid, nonsense))

    def test_any_of_them_may_die_and_printing_does_not_tell(self, fault: KilledSessions) -> None:
        found = {(f.uid, f.lost_uid, f.session_id) for f in (kill_sessions(prompts(), 3, seed) for seed in range(20))}
        assert len(found) > 5
        assert all(uid != lost for uid, lost, _ in found)
        assert fault.uid not in repr(fault)


class TestTrainTheTool:
    @pytest.fixture
    def tq(self) -> TransferQueue:
        tq = run(prompts(2))
        tq.kv_put("u0_1_0", "train", fields={"num_turns": 2, "response_mask": torch.ones(4, dtype=torch.int64)})
        return tq

    @pytest.fixture
    def batch(self, tq: TransferQueue) -> KVBatchMeta:
        keys = ["u0_0_0", "u0_1_0", "u1_0_0", "u1_1_0"]
        return KVBatchMeta(keys=keys, tags=[{}] * 4, partition_id="train")

    def test_one_mask_is_wrong_until_it_is_mended(self, tq: TransferQueue, batch: KVBatchMeta) -> None:
        before = tq.kv_batch_get(batch.keys, "train", ["response_mask"])["response_mask"].unbind()
        fault = train_the_tool(tq, batch)
        after = tq.kv_batch_get(batch.keys, "train", ["response_mask"])["response_mask"].unbind()
        wrong = [key for key, a, b in zip(batch.keys, before, after, strict=True) if not torch.equal(a, b)]
        assert wrong == [fault.key]
        row = tq.kv_batch_get([fault.key], "train", ["response_mask", "loss_mask"])[0]
        assert row["response_mask"].all()
        assert (row["response_mask"] != row["loss_mask"]).sum() == fault.truth["num_tokens"] > 0
        fault.mend()
        mended = tq.kv_batch_get(batch.keys, "train", ["response_mask"])["response_mask"].unbind()
        assert all(torch.equal(a, b) for a, b in zip(before, mended, strict=True))

    def test_right_and_open(self, tq: TransferQueue, batch: KVBatchMeta) -> None:
        fault = train_the_tool(tq, batch)
        assert fault.check(fault.key, fault.truth["num_tokens"]).ok is True
        assert fault.check(f"{fault.key} ", torch.tensor(fault.truth["num_tokens"])).ok is True
        assert fault.check(fault.key, ...).ok is None
        assert fault.check(..., 3).ok is None
        assert fault.key not in repr(fault)
        assert fault.reveal().startswith(f"{fault.key}: the mask has 1 on")

    def test_wrong(self, tq: TransferQueue, batch: KVBatchMeta) -> None:
        fault = train_the_tool(tq, batch, seed=1)
        num_tokens, response_len = fault.truth["num_tokens"], len(tq.kv_batch_get([fault.key], "train")[0]["responses"])
        with_tool = next(key for key in batch.keys if key not in (fault.key, "u0_1_0"))
        assert "its mask is 0 where a tool wrote" in words(fault.check(with_tool, num_tokens))
        assert "a model that answers at once has written every token" in words(fault.check("u0_1_0", num_tokens))
        assert "is a prompt marker" in words(fault.check("u1", num_tokens))
        assert "no partition has a key 'u7_0_0'" in words(fault.check("u7_0_0", num_tokens))
        assert "is the length of the response" in words(fault.check(fault.key, response_len))
        assert "tokens are the model's own" in words(fault.check(fault.key, response_len - num_tokens))
        assert "the number of tokens is a number, not '2'" in words(fault.check(fault.key, "2"))
        assert "not 1: count the tokens whose response_mask is 1 and should be 0" in words(fault.check(fault.key, 1))

    def test_the_row_is_one_of_the_shorter_half(self) -> None:
        tq, keys = TransferQueue(), [f"u_{i}_0" for i in range(6)]
        for i, key in enumerate(keys):  # lengths 7 .. 2, each with a tool token but the shortest
            tq.kv_put(key, "train", fields={"response_mask": torch.tensor([i == 5] + [True] * (6 - i)).long()})
        batch = KVBatchMeta(keys=keys, tags=[{}] * 6, partition_id="train")
        chosen = set()
        for seed in range(30):
            fault = train_the_tool(tq, batch, seed)
            chosen.add(fault.key)
            fault.mend()
        assert chosen == {"u_2_0", "u_3_0", "u_4_0"}

    def test_a_batch_without_a_tool(self, tq: TransferQueue) -> None:
        with pytest.raises(FaultError, match="no tool has written"):
            train_the_tool(tq, KVBatchMeta(keys=["u0_1_0"], tags=[{}], partition_id="train"))


class TestWaitForSessions:
    @pytest.fixture
    def trainer(self, tq: TransferQueue) -> Any:
        tag = {"is_prompt": True, "status": "running", "num_sessions": 1}
        tq.kv_put("u1", "train", tag=tag)
        return SimpleNamespace(tq=tq, agent_loop_manager=SimpleNamespace(ledger=TaskLedger()))

    def test_it_waits_for_all_of_them(self, trainer: Any) -> None:
        async def go() -> str:
            task = trainer.agent_loop_manager.ledger.spawn(asyncio.sleep(9), name="session", uid="u1", session_id=0)
            said = wait_for_sessions(trainer, timeout=0.05)
            task.cancel()
            return said

        assert asyncio.run(go()) == "1 prompt running, 1 session in the task ledger"

    def test_a_session_that_never_starts(self, trainer: Any) -> None:
        with pytest.raises(LessonError, match="after 0.05 s: prompts {'running'}, 0 sessions running"):
            wait_for_sessions(trainer, timeout=0.05)

    def test_a_dead_background_task_ends_the_wait(self, trainer: Any) -> None:
        trainer.agent_loop_manager.ledger.declare_fatal(RuntimeError("boom"), "session 0")
        with pytest.raises(Exception, match="boom"):
            wait_for_sessions(trainer, timeout=1.0)


def test_request_lives_draws_one_bar_a_request() -> None:
    records = [RequestRecord("s", "b", 10.5, 3, 0.5, 6), RequestRecord("s", "a", 10.0, 3, 0.5, 4)]
    view = request_lives([*records, *records])
    lines = view.text(width=120).splitlines()
    assert "2 requests, at most 1 of them at once" in lines[0]
    assert lines[-2].split() == ["a", "4", "█" * 30 + "·" * 30]
    assert lines[-1].split() == ["b", "6", "·" * 30 + "█" * 30]


def test_the_calculator_of_the_notebook() -> None:
    assert asyncio.run(calculator("12+59")) == "71"
