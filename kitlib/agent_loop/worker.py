"""AgentLoopWorkerTQ: runs the sessions of its prompts and writes what comes out of them to the queue.

verl 0.9.1: trainer/ppo/v1/agent_loop_tq.py, AgentLoopWorkerTQ (a Ray actor there, an object on an event loop here).

    for each prompt        tag {status: running, num_sessions: n}
      n sessions at once     agent loop ──> outputs ──> reward ──> one put with all outputs of the session
      all have settled     tag {status: finished}, or {status: failure} if any session raised

The status is written last, so a sampler that sees it finds every row of the group, and nobody writes to a group that
was cleared. The partition is "val" for a batch with `validate`, else "train". With
algorithm.adv_estimator=remax a prompt of "train" gets one session more, a greedy one: its reward is put on every row of
the group as `reward_baselines`, and nothing else of it is kept (verl: trainer/ppo/ray_trainer.py, line 1500).

Differs from verl: a session whose own loop raises makes its prompt a `failure` and the run goes on, as in verl; but an
error that would hit other sessions too (an AgentLoopError, the reward function, the queue, a server that is gone) is
fatal in the ledger and surfaces in the trainer. The marker also says how many sessions to expect. A session with one
output is put with kv_put instead of a kv_batch_put of one row: the same write, 0.2 ms cheaper. Left out: tracing,
distillation teachers.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict
from torch import Tensor

from kitlib.agent_loop.base import AgentLoopBase, LLMClient, get_agent_loop, register_from_file
from kitlib.agent_loop.errors import AgentLoopError
from kitlib.agent_loop.ledger import TaskLedger
from kitlib.agent_loop.output import AgentLoopOutput
from kitlib.agent_loop.row_batcher import RowBatcher
from kitlib.agent_loop.tools import Tool, load_all_tools, load_function_tools_from_path
from kitlib.agent_loop.trajectory import (
    check_output,
    share_final_reward,
    trajectory_fields,
    trajectory_keys,
    trajectory_tag,
)
from kitlib.reward import RewardLoopWorker
from kitlib.rollout.protocol import RolloutError, ServerClosedError, TokenOutput
from kitlib.transfer_queue import QueueProtocol, acting_as

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

GREEDY = {"temperature": 0.0, "top_p": 1.0, "top_k": -1}
SessionResult = tuple[list[str], float | None]
"""Keys of the rows, score of the last output."""


class AgentLoopWorkerTQ:
    """Owns the agent loops and tools of one event loop.

    Args:
        config: reads actor_rollout_ref.rollout.{n, temperature, top_p, top_k, calculate_log_probs, val_kwargs, agent,
            multi_turn, prompt_length, response_length}, data.{apply_chat_template_kwargs, truncation} and
            algorithm.adv_estimator.
        tq: where trajectories and statuses go.
        client: generates tokens.
        tokenizer: of the policy.
        reward_worker: scores sessions as they end; None leaves the scoring to the trainer.
        ledger: owns the tasks; None makes a new one.
    """

    def __init__(
        self,
        config: Any,
        tq: QueueProtocol,
        client: LLMClient,
        tokenizer: PreTrainedTokenizerBase,
        reward_worker: RewardLoopWorker | None = None,
        ledger: TaskLedger | None = None,
    ) -> None:
        self.config = config
        self.rollout_config = config.actor_rollout_ref.rollout
        self.tq = tq
        self.tokenizer = tokenizer
        self.reward_worker = reward_worker
        self.ledger = ledger if ledger is not None else TaskLedger()
        self.client = _WatchedClient(client, self.ledger)
        self.rows = RowBatcher(tq)
        self.tools = _load_tools(self.rollout_config.multi_turn)
        if self.rollout_config.agent.agent_loop_config_path:
            register_from_file(self.rollout_config.agent.agent_loop_config_path)
        self._loops: dict[str, AgentLoopBase] = {}

    async def generate_sequences(self, batch: TensorDict) -> None:
        """Start a task for each prompt of the batch and return without waiting for them.

        Reads `uid` and `global_steps` of each row, hands every column to the agent loop and stores it with the
        trajectories. Optional: `validate` (for the whole batch), `agent_name`, `__rollout_n__` (sessions of this
        prompt), `__do_sample__` (False: greedy), none of which is stored. Raises AgentLoopError if something of this is
        wrong.
        """
        validate = bool(batch.get("validate").data) if "validate" in batch else False
        sampling_params = self._sampling_params(validate)
        prompts = []
        for row in _rows(batch):
            default = self.rollout_config.agent.default_agent_loop
            prompts.append((self._loop_called(row.pop("agent_name", default)), row))
        with acting_as(stage="generate_sequences", worker=threading.current_thread().name.removeprefix("kitlib-")):
            for loop, row in prompts:  # a task, and what it spawns, keeps the signature of its birth
                self.ledger.spawn(self._run_prompt(loop, row, sampling_params, validate), name="prompt", uid=row["uid"])

    async def _run_prompt(
        self, loop: AgentLoopBase, row: dict[str, Any], sampling_params: dict[str, Any], validate: bool
    ) -> None:
        uid, partition_id = row["uid"], "val" if validate else "train"
        default_n = self.rollout_config.val_kwargs.n if validate else self.rollout_config.n
        num_sessions = row.pop("__rollout_n__", default_n)
        if not row.pop("__do_sample__", True) and not validate:
            sampling_params = {**sampling_params, **GREEDY}
        running = {"status": "running", "num_sessions": num_sessions}
        await self.tq.async_kv_put(key=uid, partition_id=partition_id, tag=running)
        sessions = [
            self._spawn(loop, {**row, "session_id": session_id}, sampling_params, partition_id)
            for session_id in range(num_sessions)
        ]
        if self.config.algorithm.adv_estimator == "remax" and not validate:
            sessions.append(self._spawn(loop, {**row, "session_id": num_sessions}, {**sampling_params, **GREEDY}, None))
        results = await asyncio.gather(*sessions, return_exceptions=True)
        errors = {session_id: result for session_id, result in enumerate(results) if isinstance(result, BaseException)}
        if errors:
            _log_failure(uid, errors, num_sessions)
        elif len(sessions) > num_sessions:
            await self._store_baseline([session.result() for session in sessions], partition_id)
        status = "failure" if errors else "finished"
        self.ledger.mark_ending()
        await self.tq.async_kv_put(key=uid, partition_id=partition_id, tag={"status": status})

    def _spawn(
        self, loop: AgentLoopBase, row: dict[str, Any], sampling_params: dict[str, Any], partition_id: str | None
    ) -> asyncio.Task[SessionResult]:
        session = self._run_session(loop, row, sampling_params, partition_id)
        return self.ledger.spawn(session, name="session", uid=row["uid"], session_id=row["session_id"])

    async def _run_session(
        self, loop: AgentLoopBase, row: dict[str, Any], sampling_params: dict[str, Any], partition_id: str | None
    ) -> SessionResult:
        """The keys of a session's rows and its score; without a partition nothing is stored."""
        try:
            result = await loop.run(sampling_params, **row)
        except AgentLoopError as error:
            self.ledger.declare_fatal(error, f"session {row['session_id']} of prompt {row['uid']}")
            raise
        outputs = result if isinstance(result, list) else [result]
        if not outputs:
            logger.warning("session %s_%s returned no output and leaves no row", row["uid"], row["session_id"])
            return [], None
        keys = trajectory_keys(outputs, row)
        for key, output in zip(keys, outputs, strict=True):
            check_output(output, key)
        try:
            await self._score(outputs, row)
            if partition_id is not None:
                await self._store(keys, outputs, row, partition_id)
        except Exception as error:
            self.ledger.declare_fatal(error, f"scoring and storing {keys[0]}")
            raise
        return keys, outputs[-1].reward_score

    async def _store_baseline(self, sessions: list[SessionResult], partition_id: str) -> None:
        """The score of the last session on every row of the others; a session without output is worth 0."""
        keys = [key for keys, _ in sessions[:-1] for key in keys]
        baseline = sessions[-1][1] or 0.0
        if keys:
            fields = TensorDict({"reward_baselines": torch.full((len(keys),), baseline)}, batch_size=[len(keys)])
            await self.tq.async_kv_batch_put(keys=keys, partition_id=partition_id, fields=fields)

    async def _score(self, outputs: list[AgentLoopOutput], row: dict[str, Any]) -> None:
        final = outputs[-1]
        if final.reward_score is None and self.reward_worker is not None:
            started = time.perf_counter()
            final.reward_score, extra_info = await self.reward_worker.compute_score(outputs, row)
            final.extra_fields["reward_extra_info"] = extra_info
            final.metrics.compute_score = time.perf_counter() - started
        share_final_reward(outputs)

    async def _store(
        self, keys: list[str], outputs: list[AgentLoopOutput], row: dict[str, Any], partition_id: str
    ) -> None:
        """All outputs of a session in one put, shared with sessions that end at the same moment."""
        fields = [trajectory_fields(output, row) for output in outputs]
        tags = [trajectory_tag(output, row) for output in outputs]
        await self.rows.put(keys, fields, tags, partition_id)

    def _sampling_params(self, validate: bool) -> dict[str, Any]:
        source = self.rollout_config.val_kwargs if validate else self.rollout_config
        return {
            "temperature": source.temperature,
            "top_p": source.top_p,
            "top_k": source.top_k,
            "repetition_penalty": 1.0,
            "logprobs": self.rollout_config.calculate_log_probs,
        }

    def _loop_called(self, agent_name: str) -> AgentLoopBase:
        if agent_name not in self._loops:
            make = get_agent_loop(agent_name)
            self._loops[agent_name] = make(self.config, self.client, self.tokenizer, tools=self.tools)
        return self._loops[agent_name]


class _WatchedClient:
    """Tells the ledger when a server is gone. A request that a healthy server refuses is the session's own failure."""

    def __init__(self, client: LLMClient, ledger: TaskLedger) -> None:
        self.client = client
        self.ledger = ledger

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> TokenOutput:
        try:
            return await self.client.generate(request_id, prompt_ids=prompt_ids, sampling_params=sampling_params)
        except Exception as error:
            if isinstance(error, ServerClosedError) or not isinstance(error, RolloutError):
                self.ledger.declare_fatal(error, "the LLM server failed")
            raise


def _rows(batch: TensorDict) -> list[dict[str, Any]]:
    """One dict a prompt: tensors as they are, objects taken out of their wrapping. Without the column `validate`."""
    for name in ("uid", "global_steps"):
        if name not in batch:
            raise AgentLoopError(
                f"generate_sequences needs a column {name!r} and got {', '.join(map(str, batch.keys()))}; "
                "PPOTrainer.submit_batch_to_rollout adds it"
            )
    columns: dict[str, list[Any]] = {}
    for name, column in batch.items():
        if name != "validate":
            columns[name] = list(column.unbind()) if isinstance(column, Tensor) else column.tolist()
    return [{name: values[i] for name, values in columns.items()} for i in range(len(batch))]


def _load_tools(multi_turn: Any) -> list[Tool]:
    """The tools of the config; with the calculator format and none configured, the shipped calculator."""
    tools = load_all_tools(multi_turn.tool_config_path, multi_turn.function_tool_path)
    if not tools and multi_turn.format == "calculator":
        return [*load_function_tools_from_path("pkg://kitlib.agent_loop.calculator")]
    return tools


def _log_failure(uid: str, errors: dict[int, BaseException], num_sessions: int) -> None:
    session_id, first = next(iter(errors.items()))
    logger.error(
        "%d of %d sessions of prompt %s failed; session %d: %s",
        len(errors),
        num_sessions,
        uid,
        session_id,
        first,
        exc_info=(type(first), first, first.__traceback__),
    )
