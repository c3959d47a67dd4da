"""The agent loop of the serial pipeline: the same sessions as in V1, and another place for what comes out of them.

verl 0.9.1: experimental/agent_loop/agent_loop.py, AgentLoopWorker and AgentLoopManager.

    V1   each session writes its row to the queue when it ends; nobody waits here, the sampler waits there
    V0   each session's output lies in a dict until the last one has ended; then all become one DataProto

So the slowest session of a batch is what everything after it waits for. Sessions, tools, reward, task ledger and
threads are those of V1. Differs from verl: a session that fails ends the run with its key in the message (verl raises
what the session raised); `session_id` is a column, because a row of V1 has one. Left out: request priorities, traces.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kitlib.agent_loop import AgentLoopManagerTQ, AgentLoopOutput, AgentLoopWorkerTQ
from kitlib.agent_loop.base import LLMClient
from kitlib.keys import TrajectoryKey
from kitlib.reward import RewardLoopWorker
from kitlib.trainer.v0.columns import object_column
from kitlib.trainer.v0.errors import SerialPipelineError
from kitlib.trainer.v0.padding import collate_outputs
from kitlib.trainer.v0.protocol import DataProto

_NO_QUEUE: Any = None  # the classes of V1 hold one; here nothing is written to it


class AgentLoopWorker(AgentLoopWorkerTQ):
    """Runs one session a row and waits for all of them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._finished: dict[str, AgentLoopOutput] = {}  # by key, until the whole batch is done

    async def generate_sequences(self, batch: DataProto) -> DataProto:  # type: ignore[override]
        """One row of output for each row of `batch`, in its order; see padding.collate_outputs for the columns.

        Reads non_tensor_batch: uid, session_id and what the agent loop wants; meta_info: global_steps, `validate`.
        """
        global_steps = batch.meta_info["global_steps"]
        rows = [
            {**item.non_tensor_batch, "global_steps": global_steps}
            for item in map(batch.__getitem__, range(len(batch)))
        ]
        validate = bool(batch.meta_info.get("validate", False))
        sampling_params = self._sampling_params(validate)
        default = self.rollout_config.agent.default_agent_loop
        tasks = [
            self.ledger.spawn(
                self._run_session(self._loop_called(row.pop("agent_name", default)), row, sampling_params, "none"),
                name="session",
                uid=row["uid"],
                session_id=row["session_id"],
            )
            for row in rows
        ]
        await asyncio.gather(*tasks, return_exceptions=True)
        self.ledger.raise_if_failed()
        outputs = [self._output_of(row, task) for row, task in zip(rows, tasks, strict=True)]
        rollout = self.rollout_config
        done = collate_outputs(outputs, rollout.prompt_length, rollout.response_length, self.tokenizer.pad_token_id)
        done.non_tensor_batch["session_id"] = batch.non_tensor_batch["session_id"]
        return done

    async def _store(
        self, keys: list[str], outputs: list[AgentLoopOutput], row: dict[str, Any], partition_id: str
    ) -> None:
        """The other sink: V1 puts the row into the queue here."""
        if len(keys) > 1:
            raise SerialPipelineError(
                f"session {row['uid']}_{row['session_id']} returned {len(keys)} outputs; a row of a DataProto is one "
                "session with one output: set trainer.use_v1=true"
            )
        self._finished[keys[0]] = outputs[0]

    def _output_of(self, row: Mapping[str, Any], task: asyncio.Task[Any]) -> AgentLoopOutput:
        error = task.exception()
        key = str(TrajectoryKey(row["uid"], row["session_id"], 0))
        output = self._finished.pop(key, None)
        if error is not None or output is None:
            reason = f"{type(error).__name__}: {error}" if error else "it returned no output"
            raise SerialPipelineError(
                f"session {key} has failed and the batch cannot do without its row: {reason}"
            ) from error
        return output


class AgentLoopManager(AgentLoopManagerTQ):
    """Gives each worker an equal part of the batch and waits for all parts."""

    worker_class = AgentLoopWorker

    def __init__(
        self,
        config: Any,
        llm_client: LLMClient,
        tokenizer: Any,
        reward_loop_worker_handles: Sequence[RewardLoopWorker] | None = None,
        num_workers: int | None = None,
    ) -> None:
        super().__init__(config, _NO_QUEUE, llm_client, tokenizer, reward_loop_worker_handles, num_workers)

    def generate_sequences(self, prompts: DataProto) -> DataProto:  # type: ignore[override]
        """Run every row as one session and return when the last has ended; meta_info gets `timing`.

        Adds `session_id` to the rows that come in: which of the rows with the same uid it is.
        """
        if self._closed:
            raise SerialPipelineError("generate_sequences was called on a closed AgentLoopManager; make a new one")
        prompts.non_tensor_batch["session_id"] = _session_ids(prompts.non_tensor_batch["uid"])
        chunks = prompts.chunk(len(self.workers))
        futures = [
            asyncio.run_coroutine_threadsafe(worker.generate_sequences(chunk), thread.loop)  # type: ignore[arg-type]
            for worker, thread, chunk in zip(self.workers, self._threads, chunks, strict=True)
        ]
        parts: list[Any] = [future.result() for future in futures]
        metrics = [one for part in parts for one in part.meta_info.pop("metrics")]
        output = DataProto.concat(parts)
        output.meta_info["timing"] = session_timing(metrics)
        return output


def session_timing(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """agent_loop/{part}/min, max, mean in seconds over the sessions, and of the slowest session each part."""
    names = ("generate_sequences", "tool_calls", "compute_score")
    table = np.array([[session.get(name) or 0.0 for name in names] for session in metrics])  # [num_sessions, 3]
    slowest = table[table.sum(axis=1).argmax()]
    timing: dict[str, float] = {}
    for name, column, seconds in zip(names, table.T, slowest, strict=True):
        timing |= {f"agent_loop/{name}/{what}": float(getattr(column, what)()) for what in ("min", "max", "mean")}
        timing[f"agent_loop/slowest/{name}"] = float(seconds)
    return timing


def _session_ids(uids: np.ndarray) -> np.ndarray:
    seen: dict[str, int] = {}
    numbers = []
    for uid in uids:
        numbers.append(seen.get(uid, 0))
        seen[uid] = numbers[-1] + 1
    return object_column(numbers)
