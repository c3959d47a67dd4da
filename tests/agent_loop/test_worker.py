"""What the worker writes to the queue: keys, tags, fields, statuses, and in which order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kitlib.agent_loop import (
    AgentLoopBase,
    AgentLoopError,
    AgentLoopMetrics,
    AgentLoopOutput,
    AgentLoopWorkerTQ,
    TaskLedger,
    register,
)
from kitlib.contract import FIELDS, TAGS
from kitlib.reward import RewardError, RewardLoopWorker
from kitlib.rollout.protocol import RolloutError, ServerClosedError
from kitlib.transfer_queue import TransferQueue
from tests.agent_loop.fakes import TOKENIZER, FakeClient, answer, batch_of, config, ids, row

CALL, RIGHT = "<tool_call>12*59</tool_call>", "####708"

DATASET = {*row(), "uid", "dummy_tensor"}
TENSORS = {"prompts", "responses", "response_mask", "loss_mask", "input_ids", "position_ids", "rollout_log_probs"}
OBJECTS = {"session_id", "global_steps", "num_turns", "metrics", "extra_fields", "multi_modal_inputs"}
MULTI_MODAL = {"mm_processor_kwargs", "mm_processor_output"}


class Recording(TransferQueue):
    """A queue that writes down the puts it gets, as (keys, tags)."""

    def __init__(self) -> None:
        super().__init__()
        self.puts: list[tuple[list[str], list[Any]]] = []

    def kv_put(self, key: str, partition_id: str, fields: Any = None, tag: Any = None, data_parser: Any = None) -> Any:
        self.puts.append(([key], [tag]))
        return super().kv_put(key, partition_id, fields, tag, data_parser)

    def kv_batch_put(
        self, keys: list[str], partition_id: str, fields: Any = None, tags: Any = None, data_parser: Any = None
    ) -> Any:
        self.puts.append((keys, tags))
        return super().kv_batch_put(keys, partition_id, fields, tags, data_parser)


def run(
    client: Any,
    *rows: dict[str, Any],
    tq: TransferQueue | None = None,
    overrides: tuple[str, ...] = (),
    reward: bool = True,
    ledger: TaskLedger | None = None,
    **constants: Any,
) -> tuple[TransferQueue, AgentLoopWorkerTQ]:
    """Run the worker on prompts u0, u1, ... until all its tasks have ended."""
    tq = tq or TransferQueue()
    settings = config(*overrides)
    reward_worker = RewardLoopWorker(settings, TOKENIZER) if reward else None
    worker = AgentLoopWorkerTQ(settings, tq, client, TOKENIZER, reward_worker, ledger)

    async def go() -> None:
        await worker.generate_sequences(batch_of(list(rows), [f"u{i}" for i in range(len(rows))], **constants))
        while worker.ledger.running():
            await asyncio.sleep(0.001)

    asyncio.run(go())
    return tq, worker


def status(tq: TransferQueue, uid: str, partition_id: str = "train") -> str:
    return tq.kv_list(partition_id)[partition_id][uid]["status"]


def rows_of(tq: TransferQueue, partition_id: str = "train") -> list[str]:
    return [key for key in tq.kv_list(partition_id)[partition_id] if "_" in key]


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def scripted(name: str) -> Callable[[Any], Any]:
    """Register `run` as the agent loop `name`."""

    def decorate(function: Any) -> Any:
        register(name)(type(name, (AgentLoopBase,), {"run": function}))
        return function

    return decorate


def trajectory(reply: str, **fields: Any) -> AgentLoopOutput:
    token_ids = ids(reply)
    return AgentLoopOutput([1, 2], token_ids, [1] * len(token_ids), AgentLoopMetrics(), **fields)


def test_fields_tags_and_keys_of_a_trajectory() -> None:
    tq, _ = run(FakeClient(CALL, RIGHT), row(), row("11*11=?"), global_steps=7)
    keys = ["u0_0_0", "u0_1_0", "u1_0_0", "u1_1_0"]
    assert sorted(rows_of(tq)) == keys
    data = tq.kv_batch_get(keys, "train")
    assert set(data.keys()) == DATASET | TENSORS | OBJECTS | MULTI_MODAL | {"rm_scores"}
    assert set(data.keys()) <= set(FIELDS)
    for name in sorted(data.keys()):
        if FIELDS[name].layout == "jagged":
            assert str(data[name].dtype) == f"torch.{FIELDS[name].dtype}", name
    assert data.get("uid").tolist() == ["u0", "u0", "u1", "u1"]
    assert data.get("session_id").tolist() == [0, 1, 0, 1]
    assert data.get("global_steps").tolist() == [7] * 4
    assert data.get("raw_prompt").tolist()[2] == [{"role": "user", "content": "11*11=?"}]
    assert data.get("multi_modal_inputs").tolist() == [{}] * 4
    extra = data.get("extra_fields").tolist()[0]
    assert extra["reward_extra_info"] == {"acc": 1.0}
    assert {"turn_scores", "tool_rewards", "min_global_steps", "max_global_steps"} <= set(extra)


def test_the_tensors_of_a_trajectory_fit_together() -> None:
    tq, _ = run(FakeClient(CALL, RIGHT), row())
    data = tq.kv_batch_get(["u0_1_0"], "train")
    one = {name: data[name].unbind()[0] for name in TENSORS | {"rm_scores"}}
    assert torch.equal(one["input_ids"], torch.cat([one["prompts"], one["responses"]]))
    assert torch.equal(one["position_ids"], torch.arange(len(one["input_ids"])))
    assert torch.equal(one["loss_mask"], one["response_mask"])
    assert one["rm_scores"].tolist() == [0.0] * (len(one["responses"]) - 1) + [1.0]
    tag = tq.kv_list("train")["train"]["u0_1_0"]
    assert tag["prompt_len"] == len(one["prompts"])
    assert tag["response_len"] == len(one["responses"])
    assert tag["seq_len"] == len(one["input_ids"])


def test_tags_of_rows_and_markers() -> None:
    tq, _ = run(FakeClient(answer(CALL, step=4), answer(RIGHT, step=6)), row(), global_steps=7)
    tags = tq.kv_list("train")["train"]
    assert tags["u0"] == {
        "status": "finished",
        "num_sessions": 2,
    }  # the trainer has put is_prompt and global_steps there before
    expected = {name for name, tag in TAGS.items() if tag.on == "row"} | {"status", "global_steps"}
    assert set(tags["u0_0_0"]) == expected
    assert tags["u0_0_0"]["status"] == "success"
    assert (tags["u0_0_0"]["global_steps"], tags["u0_0_0"]["min_global_steps"]) == (7, 4)
    assert tags["u0_0_0"]["max_global_steps"] == 6


def test_running_comes_first_and_the_status_last_with_one_put_for_sessions_that_end_together() -> None:
    tq = Recording()
    run(FakeClient(CALL, RIGHT), row(), tq=tq)
    assert tq.puts[0] == (["u0"], [{"status": "running", "num_sessions": 2}])
    assert [keys for keys, _ in tq.puts[1:-1]] == [["u0_0_0", "u0_1_0"]]
    assert tq.puts[-1] == (["u0"], [{"status": "finished"}])


def test_a_failed_session_fails_its_prompt_after_the_others_have_settled(caplog: pytest.LogCaptureFixture) -> None:
    tq = Recording()

    @scripted("one_of_two_fails")
    async def run_loop(self: Any, sampling_params: Any, **columns: Any) -> AgentLoopOutput:
        if columns["session_id"] == 0:
            raise KeyError("no such page")
        await until(lambda: status(tq, "u1") == "finished")  # and so, the other session has long failed
        return trajectory(RIGHT)

    with caplog.at_level(logging.ERROR):
        _, worker = run(
            FakeClient(CALL, RIGHT), row(agent_name="one_of_two_fails"), row(agent_name="tool_agent"), tq=tq
        )
    assert status(tq, "u0") == "failure"
    assert status(tq, "u1") == "finished"
    assert sorted(rows_of(tq)) == ["u0_1_0", "u1_0_0", "u1_1_0"]
    assert [keys for keys, _ in tq.puts].index(["u0_1_0"]) < len(tq.puts) - 1
    assert tq.puts[-1] == (["u0"], [{"status": "failure"}])
    worker.ledger.raise_if_failed()  # the run goes on
    (record,) = worker.ledger.failures()
    assert (record.uid, record.session_id, record.state) == ("u0", 0, "failed")
    assert "1 of 2 sessions of prompt u0 failed; session 0: 'no such page'" in caplog.text
    assert "Traceback" in caplog.text


@pytest.mark.parametrize(
    ("other", "at_the_end"), [("returns", "finished"), ("raises", "failure"), ("silent", "finished")]
)
def test_the_status_stays_running_until_the_last_session_has_settled(other: str, at_the_end: str) -> None:
    tq, ledger, seen = TransferQueue(), TaskLedger(), []

    @scripted(f"one_{other}_one_is_slow")
    async def run_loop(self: Any, sampling_params: Any, **columns: Any) -> Any:
        if columns["session_id"] == 1:
            await until(lambda: len(ledger.running()) == 2)  # the prompt and this one: the other session has settled
            await asyncio.sleep(0.02)  # time to write a status too early
            seen.append((tq.kv_list("train")["train"]["u0"], len(rows_of(tq))))
        elif other == "raises":
            raise KeyError("no such page")
        return [] if other == "silent" else trajectory(RIGHT)

    run(FakeClient(), row(agent_name=f"one_{other}_one_is_slow"), tq=tq, ledger=ledger)
    assert seen == [({"status": "running", "num_sessions": 2}, 1 if other == "returns" else 0)]
    assert status(tq, "u0") == at_the_end


def test_several_outputs_of_a_session_share_the_final_reward_and_one_put() -> None:
    @scripted("two_outputs")
    async def run_loop(self: Any, sampling_params: Any, **columns: Any) -> list[AgentLoopOutput]:
        return [trajectory("12"), trajectory(RIGHT)]

    tq = Recording()
    run(FakeClient(), row(agent_name="two_outputs"), tq=tq, overrides=("actor_rollout_ref.rollout.n=1",))
    assert [keys for keys, _ in tq.puts] == [["u0"], ["u0_0_0", "u0_0_1"], ["u0"]]
    data = tq.kv_batch_get(["u0_0_0", "u0_0_1"], "train")
    assert [scores.tolist()[-1] for scores in data["rm_scores"].unbind()] == [1.0, 1.0]
    assert [extra["reward_extra_info"] for extra in data.get("extra_fields").tolist()] == [{"acc": 1.0}] * 2


def test_no_output_leaves_no_row() -> None:
    @scripted("silent")
    async def run_loop(self: Any, sampling_params: Any, **columns: Any) -> list[AgentLoopOutput]:
        return []

    tq, _ = run(FakeClient(), row(agent_name="silent"))
    assert rows_of(tq) == []
    assert status(tq, "u0") == "finished"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"response_ids": []}, "u0_0_0: 2 prompt and 0 response tokens"),
        ({"response_mask": [1]}, "u0_0_0: response_mask has 1 entries for 4 response_ids"),
        ({"response_logprobs": [0.0]}, "u0_0_0: response_logprobs has 1 entries for 4 response_ids"),
    ],
)
def test_an_output_that_is_no_trajectory_fails_its_prompt(
    fields: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    @scripted("crooked")
    async def run_loop(self: Any, sampling_params: Any, **columns: Any) -> AgentLoopOutput:
        return AgentLoopOutput(**{"prompt_ids": [1, 2], "response_ids": [3] * 4, "response_mask": [1] * 4, **fields})

    tq, worker = run(FakeClient(), row(agent_name="crooked"))
    assert status(tq, "u0") == "failure"
    assert rows_of(tq) == []
    assert said in caplog.text
    worker.ledger.raise_if_failed()


def test_a_score_of_the_loop_itself_is_kept() -> None:
    @scripted("self_scored")
    async def run_loop(self: Any, sampling_params: Any, **columns: Any) -> AgentLoopOutput:
        return trajectory(RIGHT, reward_score=0.25)

    tq, _ = run(FakeClient(), row(agent_name="self_scored"))
    assert tq.kv_batch_get(["u0_0_0"], "train")["rm_scores"].unbind()[0][-1] == 0.25


def test_without_a_reward_worker_there_are_no_scores() -> None:
    tq, _ = run(FakeClient(RIGHT), row(), reward=False)
    data = tq.kv_batch_get(["u0_0_0"], "train")
    assert "rm_scores" not in set(data.keys())
    assert "reward_extra_info" not in data.get("extra_fields").tolist()[0]


def test_a_bad_reward_is_fatal_and_named(tmp_path: Path) -> None:
    path = tmp_path / "my_reward.py"
    path.write_text("def compute_score(**kwargs):\n    return float('nan')\n")
    tq, worker = run(FakeClient(RIGHT), row(), overrides=(f"reward.custom_reward_function.path={path}",))
    assert status(tq, "u0") == "failure"
    assert rows_of(tq) == []
    assert worker.ledger.failed_event.is_set()
    with pytest.raises(RewardError, match=r"compute_score .*my_reward.py.* returned nan for trajectory u0_\d"):
        worker.ledger.raise_if_failed()


@pytest.mark.parametrize(
    ("error", "fatal"),
    [
        (ServerClosedError("the server was closed"), ServerClosedError),
        (RuntimeError("the forward pass failed"), AgentLoopError),
        (RolloutError("this prompt is too long"), None),
    ],
)
def test_a_server_that_is_gone_is_fatal_and_a_refused_request_is_not(error: Exception, fatal: Any) -> None:
    tq, worker = run(FakeClient(error), row())
    assert status(tq, "u0") == "failure"
    if fatal is None:
        worker.ledger.raise_if_failed()
    else:
        with pytest.raises(fatal, match=str(error)):
            worker.ledger.raise_if_failed()


def test_a_queue_that_is_gone_is_fatal() -> None:
    tq = TransferQueue()

    def close_it(prompt_ids: Any, params: Any) -> str:
        tq.close()
        return RIGHT

    _, worker = run(FakeClient(close_it), row(), tq=tq)
    with pytest.raises(Exception, match="the queue is closed"):
        worker.ledger.raise_if_failed()


@pytest.mark.parametrize("truncation", ["error", "left", "right", "middle"])
def test_a_prompt_that_is_too_long(truncation: str) -> None:
    client = FakeClient(RIGHT)
    overrides = ("data.max_prompt_length=6", f"data.truncation={truncation}")
    whole = TOKENIZER.apply_chat_template(row()["raw_prompt"], add_generation_prompt=True, return_dict=False)
    tq, worker = run(client, row(), overrides=overrides)
    if truncation == "error":
        assert status(tq, "u0") == "failure"
        with pytest.raises(
            AgentLoopError, match=r"prompt of \d+ tokens .*max_prompt_length=6.*12\*59.*data.truncation"
        ):
            worker.ledger.raise_if_failed()
        return
    kept = {"left": whole[-6:], "right": whole[:6], "middle": whole[:3] + whole[-3:]}[truncation]
    assert client.requests[0]["prompt_ids"] == kept


def test_sampling_in_training_and_validation() -> None:
    training, validation = FakeClient(RIGHT), FakeClient(RIGHT)
    overrides = ("actor_rollout_ref.rollout.temperature=0.7", "actor_rollout_ref.rollout.top_k=5")
    run(training, row(), overrides=overrides)
    tq, _ = run(validation, row(), overrides=overrides, validate=True)
    assert len(training.requests) == 2
    assert len(validation.requests) == 1  # val_kwargs.n
    assert rows_of(tq, "val") == ["u0_0_0"]
    assert status(tq, "u0", "val") == "finished"
    assert "train" not in tq.kv_list()
    names = ("temperature", "top_p", "top_k", "repetition_penalty", "logprobs")
    assert [training.requests[0][name] for name in names] == [0.7, 1.0, 5, 1.0, True]
    assert [validation.requests[0][name] for name in names] == [0.0, 1.0, -1, 1.0, True]


def test_a_prompt_may_ask_for_its_own_number_of_sessions_and_for_greedy_ones() -> None:
    client = FakeClient(RIGHT)
    tq, _ = run(client, row(__rollout_n__=3, __do_sample__=False), row(__rollout_n__=1, __do_sample__=True))
    assert rows_of(tq) == ["u0_0_0", "u0_1_0", "u0_2_0", "u1_0_0"]
    assert [tq.kv_list("train")["train"][uid]["num_sessions"] for uid in ("u0", "u1")] == [3, 1]
    assert [request["temperature"] for request in client.requests] == [0.0] * 3 + [1.0]
    assert not {"__rollout_n__", "__do_sample__", "agent_name", "validate"} & set(
        tq.kv_batch_get(["u0_0_0"], "train").keys()
    )


def test_the_prompt_is_rendered_once_for_all_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[Any] = []
    original = type(TOKENIZER).apply_chat_template
    monkeypatch.setattr(
        type(TOKENIZER),
        "apply_chat_template",
        lambda self, messages, **kwargs: rendered.append(messages) or original(self, messages, **kwargs),
    )
    run(FakeClient(CALL, RIGHT), row(), overrides=("actor_rollout_ref.rollout.n=8",))
    assert len(rendered) == 3  # the prompt, and a conversation without and with the tool message


def test_wrong_batches_are_refused_where_they_are_handed_in() -> None:
    with pytest.raises(AgentLoopError, match=r"no agent loop is called 'dreamer' .*single_turn_agent, tool_agent"):
        run(FakeClient(), row(agent_name="dreamer"))

    async def lacking(name: str) -> None:
        batch = batch_of([row()], ["u0"])
        del batch[name]
        worker = AgentLoopWorkerTQ(config(), TransferQueue(), FakeClient(), TOKENIZER)
        await worker.generate_sequences(batch)

    for name in ("uid", "global_steps"):
        with pytest.raises(AgentLoopError, match=f"needs a column '{name}'"):
            asyncio.run(lacking(name))


def test_single_turn_agent() -> None:
    client = FakeClient("<tool_call>1+1</tool_call>")
    tq, _ = run(client, row(agent_name="single_turn_agent"))
    data = tq.kv_batch_get(["u0_0_0"], "train")
    assert set(data.keys()) == DATASET | TENSORS | OBJECTS | MULTI_MODAL | {"rm_scores"}
    assert data.get("num_turns").tolist() == [2]
    assert data.get("extra_fields").tolist()[0]["tool_rewards"] == []
    assert client.requests[0]["max_tokens"] == 64
    assert data["response_mask"].unbind()[0].unique().tolist() == [1]


def test_agent_loops_of_a_file_get_their_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_loops.py").write_text(
        "from kitlib.agent_loop import AgentLoopBase, AgentLoopOutput\n"
        "class Fixed(AgentLoopBase):\n"
        "    def __init__(self, *args, token, **kwargs):\n"
        "        super().__init__(*args, **kwargs)\n"
        "        self.token = token\n"
        "    async def run(self, sampling_params, **row):\n"
        "        return AgentLoopOutput([1], [self.token], [1])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "loops.yaml"
    path.write_text("- name: fixed\n  _target_: my_loops.Fixed\n  token: 42\n")
    overrides = (
        f"actor_rollout_ref.rollout.agent.agent_loop_config_path={path}",
        "actor_rollout_ref.rollout.agent.default_agent_loop=fixed",
    )
    tq, _ = run(FakeClient(), row(), overrides=overrides)
    assert tq.kv_batch_get(["u0_0_0"], "train")["responses"].unbind()[0].tolist() == [42]


def test_a_file_entry_that_names_no_loop(tmp_path: Path) -> None:
    path = tmp_path / "loops.yaml"
    path.write_text("- name: fixed\n  _target_: no_such_module.Loop\n")
    with pytest.raises(AgentLoopError, match="agent_loop_config_path=.*names no agent loop.*no_such_module"):
        run(FakeClient(), row(), overrides=(f"actor_rollout_ref.rollout.agent.agent_loop_config_path={path}",))
