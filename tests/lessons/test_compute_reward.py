"""Notebook 06: its checks name the mistake, its faults are really there, its server has the troubles it promises."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kitlib.config import load_config
from kitlib.inspector.doctor import doctor
from kitlib.lessons import Answer, Fault
from kitlib.lessons.compute_reward import (
    ScoringServer,
    check_num_requests,
    check_position,
    check_rule,
    check_scores,
    count_requests,
    fence,
    make_reward_model,
    rescore,
    rows_there,
    rules,
    session_of,
    swap_rewards,
    texts_of,
)
from kitlib.lessons.compute_reward.checks import CASES
from kitlib.lessons.faults import FaultError
from kitlib.paths import data_path
from kitlib.reward import RewardLoopWorker, compute_score
from kitlib.reward.remote import RemoteRewardError, remote_score
from kitlib.reward.reward_model import RewardModel
from kitlib.transfer_queue import KVBatchMeta, TransferQueue, list_of_dict_to_tensordict
from tests.agent_loop.fakes import TOKENIZER, ids

TALK = "<tool_call>12+59</tool_call>\ntool\n71\nassistant\n####71"
TEXTS = ["#### 71", "71", "####70####71", "####071", "####71####7", "####7", TALK]
SCORES = [1, 0, 1, 0, 0, 0, 1]


def words(answer: Answer) -> str:
    assert answer.ok is False
    return "\n".join(answer.says)


class TestScores:
    def check(self, answer: Any) -> Answer:
        return check_scores(answer, TEXTS, "kitlib/sum_tool", "71")

    def test_right(self) -> None:
        assert self.check(SCORES).ok is True
        for answer in (tuple(SCORES), torch.tensor(SCORES), np.array(SCORES, dtype=float), [bool(s) for s in SCORES]):
            assert self.check(answer).ok is True

    @pytest.mark.parametrize("answer", [..., [..., *SCORES[1:]]])
    def test_open(self, answer: Any) -> None:
        assert self.check(answer).ok is None

    @pytest.mark.parametrize(
        ("position", "mistake"),
        [
            (0, "gets 1: the last #### is followed by the result, and nothing else matters"),
            (1, "gets 0: without #### there is no answer"),
            (2, "gets 1: the last #### is followed by the result"),
            (3, "gets 0: the rule compares texts, not numbers"),
            (4, "gets 0: only what stands behind the last #### counts"),
            (5, "gets 0: all that stands behind the last #### must be the result"),
            (6, "gets 1: the last #### is followed by the result"),
        ],
    )
    def test_each_wrong_score(self, position: int, mistake: str) -> None:
        wrong = [1 - score if i == position else score for i, score in enumerate(SCORES)]
        assert f"{TEXTS[position]!r} {mistake}" in words(self.check(wrong))
        assert len(self.check(wrong).says) == 1

    @pytest.mark.parametrize("answer", [[1, 0], 1, {0, 1}, "1010001", list("1010001")])
    def test_no_list(self, answer: Any) -> None:
        assert "a list of 7 numbers" in words(self.check(answer))


class TestRule:
    def test_right(self) -> None:
        def careful(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
            _, mark, answer = solution_str.rpartition("####")
            return float(bool(mark) and answer.strip() == str(ground_truth))

        assert check_rule(careful).ok is True
        assert check_rule(compute_score).ok is True

    @pytest.mark.parametrize(
        "dress",
        [
            lambda score: {"score": score, "acc": score},
            bool,
            torch.tensor,
            np.float32,
            lambda score: 2 * score - 1,  # a wrong answer costs
        ],
    )
    def test_right_in_another_dress(self, dress: Any) -> None:
        assert check_rule(lambda *args, **kwargs: dress(compute_score(*args, **kwargs))).ok is True

    def test_open(self) -> None:
        assert check_rule(lambda data_source, solution_str, ground_truth, extra_info=None: ...).ok is None

    def test_the_hasty_rule(self) -> None:
        said = words(check_rule(rules.hasty))
        assert "the model copied it wrongly" in said
        assert "71 is only a part of another number" in said
        assert ".. and 4 more" in said

    @pytest.mark.parametrize(
        ("rule", "mistake"),
        [
            (lambda text, truth: "####" + truth in text, "'####710' gets 1: 71 is only a part of another number"),
            (lambda text, truth: text.endswith(truth), "'####171' gets 1: 71 is only a part of another number"),
            (lambda text, truth: truth in text.rpartition("####")[2].split(), "a list of guesses is no answer"),
            (lambda text, truth: truth in text.split("####"), "of several answers, the last one is the answer"),
            (lambda text, truth: text == "####" + truth, "what stands before the answer must not matter"),
            (lambda text, truth: "=" + truth in text, "'12+59=71' gets 1: there is no #### before it"),
            (lambda text, truth: 1.0, "'' gets 1: there is no answer"),
            (lambda text, truth: 0.0, "'####71' gets 0: this is the right answer"),
            (
                lambda text, truth: text.rpartition("####")[2] == truth and 1.0,
                "'#### 71' gets 0: this is the right answer",
            ),
            (lambda text, truth: {"acc": 1.0}, "it returned {'acc': 1.0}: a score is a finite number, or a dictionary"),
            (lambda text, truth: None, "it returned None: a score is a finite number"),
            (lambda text, truth: math.nan, "it returned nan: a score is a finite number"),
            (lambda text, truth: float(text.rpartition("####")[2] == truth) or 1 / 0, "it raised ZeroDivisionError"),
        ],
    )
    def test_other_rules(self, rule: Any, mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("kitlib.lessons.compute_reward.checks.MAX_SAID", len(CASES))
        answer = check_rule(lambda data_source, solution_str, ground_truth, extra_info: rule(solution_str, "71"))
        assert mistake in words(answer)

    def test_a_rule_for_one_prompt_only(self) -> None:
        def constant(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> Any:
            return compute_score(data_source, solution_str, "71")

        assert words(check_rule(constant)) == (
            "'####708' gets 0: the result is in ground_truth; it is not 71 for every prompt"
        )

    def test_the_cases_are_those_of_the_shipped_rule(self) -> None:
        for text, is_right, _ in CASES:
            assert compute_score("kitlib/sum_tool", text, "71") == is_right


ROW = {"prompts": torch.zeros(9), "responses": torch.zeros(5), "rm_scores": torch.tensor([0, 0, 0, 0, 1.0])}


class TestPosition:
    @pytest.mark.parametrize("answer", [4, 4.0, torch.tensor(4), np.int64(4)])
    def test_right(self, answer: Any) -> None:
        assert check_position(answer, ROW).ok is True

    def test_open(self) -> None:
        assert check_position(..., ROW).ok is None

    @pytest.mark.parametrize(
        ("answer", "mistake"),
        [
            (5, "positions begin with 0"),
            (0, "when the answer is complete"),
            (13, "no number for the tokens of the prompt"),
            (14, "no number for the tokens of the prompt, and positions begin with 0"),
            (3, "its last token included"),
            (2, "too small"),
            ("4", "the answer is a number"),
        ],
    )
    def test_wrong(self, answer: Any, mistake: str) -> None:
        assert mistake in words(check_position(answer, ROW))


class TestNumRequests:
    def test_right(self) -> None:
        assert check_num_requests(3, "down", num_retries=2).ok is True

    def test_open(self) -> None:
        assert check_num_requests(..., "down", num_retries=2).ok is None

    @pytest.mark.parametrize(
        ("answer", "mistake"),
        [(2, "a retry comes after the first try"), (1, "may pass"), (0, "asked all the same"), (4, "one too many")],
    )
    def test_wrong(self, answer: int, mistake: str) -> None:
        assert mistake in words(check_num_requests(answer, "down", num_retries=2))


@pytest.fixture
def queue() -> TransferQueue:
    """Two groups: right and wrong, right and right; a marker."""
    tq = TransferQueue()
    tq.kv_put("u0", "train", tag={"is_prompt": True, "status": "finished", "num_sessions": 2})
    tq.kv_put("u1", "train", tag={"is_prompt": True, "status": "finished", "num_sessions": 2})
    rows = []
    for i, text in enumerate((TALK, "####17", "####71", "####71")):
        responses = torch.tensor(ids(text + "<|im_end|>"))
        rm_scores = torch.zeros(len(responses))
        rm_scores[-1] = compute_score("kitlib/sum_tool", text, "71")  # type: ignore[assignment]
        rows.append(
            {
                "uid": f"u{i // 2}",
                "session_id": i % 2,
                "prompts": torch.tensor(ids("12+59=?")),
                "responses": responses,
                "response_mask": torch.ones_like(responses),
                "rm_scores": rm_scores,
                "data_source": "kitlib/sum_tool",
                "reward_model": {"ground_truth": "71"},
                "extra_info": {"index": i},
                "extra_fields": {"reward_extra_info": {"acc": 0.0}, "kept": i},
                "raw_prompt": [{"role": "user", "content": "12+59=?"}],
                "num_turns": 2,
            }
        )
    keys = ["u0_0_0", "u0_1_0", "u1_0_0", "u1_1_0"]
    tags = [{"status": "success"} for _ in keys]
    tq.kv_batch_put(keys=keys, partition_id="train", fields=list_of_dict_to_tensordict(rows), tags=tags)
    return tq


@pytest.fixture
def batch(queue: TransferQueue) -> KVBatchMeta:
    return rows_there(queue)


def rewards_in(tq: TransferQueue, batch: KVBatchMeta) -> list[float]:
    return [row.sum().item() for row in tq.kv_batch_get(batch.keys, "train", ["rm_scores"])["rm_scores"].unbind()]


def worker(name: str | None = None) -> RewardLoopWorker:
    own = ["pkg://kitlib.lessons.compute_reward.rules", name]
    keys = ["reward.custom_reward_function.path", "reward.custom_reward_function.name"]
    return RewardLoopWorker(
        load_config([f"{k}={v}" for k, v in zip(keys, own, strict=True)] if name else []), TOKENIZER
    )


class TestScoring:
    def test_rows_there_takes_nothing(self, queue: TransferQueue, batch: KVBatchMeta) -> None:
        assert batch.keys == ["u0_0_0", "u0_1_0", "u1_0_0", "u1_1_0"]
        assert batch.tags[0] == {"status": "success"}
        assert list(queue.kv_list("train")["train"]) == ["u0", "u1", *batch.keys]

    def test_texts(self, queue: TransferQueue, batch: KVBatchMeta) -> None:
        assert texts_of(queue, batch, TOKENIZER)["u0_0_0"] == TALK

    def test_a_session_can_be_scored(self, queue: TransferQueue) -> None:
        outputs, row = session_of(queue, "u0_0_0")
        assert asyncio.run(worker().compute_score(outputs, row)) == (1.0, {"acc": 1.0})
        assert (row["uid"], row["session_id"], outputs[-1].num_turns) == ("u0", 0, 2)

    def test_rescore_overwrites_score_and_details(self, queue: TransferQueue, batch: KVBatchMeta) -> None:
        scores = asyncio.run(rescore(queue, batch, worker("with_details")))
        assert list(scores.values()) == rewards_in(queue, batch) == [1.0, 0.0, 1.0, 1.0]
        extra = queue.kv_batch_get(batch.keys, "train", ["extra_fields"]).get("extra_fields").tolist()
        infos = [fields["reward_extra_info"] for fields in extra]
        assert infos[0] == {"score": 1.0, "acc": 1.0, "num_calls": 1}
        assert infos[1] == {"score": 0.0, "acc": 0.0}
        assert [fields["kept"] for fields in extra] == [0, 1, 2, 3]

    def test_the_doctor_sees_what_the_notebook_says(self, queue: TransferQueue, batch: KVBatchMeta) -> None:
        settings = ["algorithm.filter_groups.enable=true", "algorithm.filter_groups.metric=num_calls"]
        asyncio.run(rescore(queue, batch, worker("with_details")))
        report = doctor(queue, stage="sample", config=load_config(settings))
        assert "sparse_reward_keys" in {finding.kind for finding in report.findings}


class TestRules:
    def test_nan_where_there_is_no_call(self) -> None:
        assert math.isnan(rules.mean_over_calls("", "####71", "71"))
        assert rules.mean_over_calls("", TALK, "71") == 1.0

    def test_slow(self) -> None:
        assert rules.slow("", "", "", seconds=0.0) == 1.0


class TestSwapRewards:
    @pytest.fixture
    def fault(self, queue: TransferQueue, batch: KVBatchMeta) -> Fault:
        return swap_rewards(queue, batch)

    def test_two_rewards_are_swapped_until_mended(self, queue: TransferQueue, batch: KVBatchMeta, fault: Fault) -> None:
        assert rewards_in(queue, batch) == [0.0, 1.0, 1.0, 1.0]
        fault.mend()
        assert rewards_in(queue, batch) == [1.0, 0.0, 1.0, 1.0]

    def test_right_and_open(self, fault: Fault) -> None:
        assert fault.check({"u0_1_0", "u0_0_0"}).ok is True
        assert fault.check(...).ok is None
        assert "u0_0_0" not in repr(fault)

    @pytest.mark.parametrize(
        ("answer", "mistake"),
        [
            ({"u0_0_0"}, "1 key still missing"),
            ({"u0_0_0", "u1_0_0"}, "u1_0_0 is a healthy row: its reward is what the rule gives for its text"),
            ({"u0", "u0_0_0"}, "u0 is a prompt marker"),
            ({"u9_0_0", "u0_0_0"}, "no partition has a key 'u9_0_0'"),
            (7, "a set of keys"),
        ],
    )
    def test_wrong(self, fault: Fault, answer: Any, mistake: str) -> None:
        assert mistake in words(fault.check(answer))

    def test_a_batch_without_a_pair(self, queue: TransferQueue) -> None:
        alike = KVBatchMeta(keys=["u1_0_0", "u1_1_0"], tags=[{}, {}], partition_id="train")
        with pytest.raises(FaultError, match="two different rewards"):
            swap_rewards(queue, alike)


class TestServer:
    def test_troubles_then_the_score(self) -> None:
        server = ScoringServer(["down", "no json"])
        answer = remote_score("kitlib/sum_tool", TALK, "71", {"turns": 4}, url=server.url, first_wait=0.01)
        server.close()
        server.close()
        assert answer == {"score": 1.0, "judge": "scoring server"}
        assert [kind for _, kind in server.requests] == ["down", "no json", "answered"]
        assert server.requests[0][0]["extra_info"] == {"turns": 4}

    def test_a_slow_answer_comes_too_late(self) -> None:
        server = ScoringServer(always="slow")
        with pytest.raises(RemoteRewardError, match="in 1 tries"):
            remote_score("kitlib/sum_tool", TALK, "71", url=server.url, timeout=0.1, num_retries=0)
        server.close()

    @pytest.mark.parametrize(("always", "expected"), [("down", 3), ("refuses", 1)])
    def test_requests_before_giving_up(self, always: Any, expected: int) -> None:
        assert count_requests(always, num_retries=2) == expected


def test_the_reward_model_scores(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = make_reward_model(tmp_path, data_path("models/sum_tool"))
    assert "it/s" not in "".join(capfd.readouterr())  # no progress bar
    prompts = [[{"role": "user", "content": "12+59=?"}]] * 2
    one, other = RewardModel(path).score(prompts, ["####71", "####72"])
    assert one != other
    assert RewardModel(make_reward_model(tmp_path / "again", data_path("models/sum_tool"))).score(
        prompts, ["####71", "####72"]
    ) == [one, other]


def test_the_fence_is_what_the_machine_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kitlib.reward.sandbox._namespaces", lambda: ())
    assert fence() == {"allow_network": True}
    monkeypatch.setattr("kitlib.reward.sandbox._namespaces", lambda: ("unshare",))
    assert fence() == {}
