"""Scores one trajectory, inside the agent loop, as soon as the session ends.

verl 0.9.1: experimental/reward_loop/reward_loop.py, RewardLoopWorker, with reward_manager/naive.py, NaiveRewardManager.

    input    the outputs of one session and the dataset row of its prompt; only the last output is scored
    calls    compute_score(data_source, solution_str, ground_truth, extra_info)
    output   (score, reward_extra_info): a number gives {"acc": number}, a dict gives `score` and all its items

Differs from verl: the score must be a finite number. verl stores a NaN, which makes the advantages of the whole group
NaN; here it is an error, as is an exception in the function, and the error names the trajectory, the function and the
way out. The rules of kitlib run on the event loop, where 128 of them take 1.5 ms, decoding included; a custom function
may be slow, so it gets a thread, as all functions do in verl (9 ms for 128). `extra_info` is copied, not written to.
Left out: reward models.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from kitlib.reward.load import load_reward_fn
from kitlib.reward.rules import RewardError, default_compute_score

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class ScorableOutput(Protocol):
    """What the scorer reads of an agent loop's output."""

    response_ids: list[int]
    num_turns: int | None
    extra_fields: dict[str, Any]


class RewardLoopWorker:
    """Holds the reward function of the config. Stateless, so any number of event loops may share one.

    Args:
        config: reads `reward.custom_reward_function`.
        tokenizer: decodes the responses.
    """

    def __init__(self, config: Any, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.function = load_reward_fn(config)
        self.on_loop = self.function is default_compute_score or inspect.iscoroutinefunction(self.function)

    async def compute_score(
        self, outputs: Sequence[ScorableOutput], row: dict[str, Any]
    ) -> tuple[float, dict[str, Any]]:
        """The score of a session's last output, and what else the function reported.

        Args:
            outputs: of one session, at least one.
            row: of its prompt: `data_source`, `reward_model` with `ground_truth`, optional `extra_info`, and `uid` and
                `session_id` for messages. The function gets the output's extra_fields and `num_turns` in extra_info
                too.

        Raises:
            RewardError: no ground truth, no rule for the data source, an exception in the function, or a score that is
                no finite number.
        """
        arguments = self._arguments(outputs[-1], row)
        try:
            result = await self._call(arguments)
        except Exception as error:
            if isinstance(error, RewardError):
                raise
            raise self._error(row, f"raised {type(error).__name__}: {error}") from error
        if not isinstance(result, dict):
            score = self._finite(result, row)
            return score, {"acc": score}
        if "score" not in result:
            raise self._error(row, f"returned a dict without 'score': {result!r}")
        return self._finite(result["score"], row), dict(result)

    def _arguments(self, output: ScorableOutput, row: dict[str, Any]) -> dict[str, Any]:
        ground_truth = (row.get("reward_model") or {}).get("ground_truth")
        if "data_source" not in row or ground_truth is None:
            lacking = "reward_model.ground_truth" if "data_source" in row else "data_source"
            raise RewardError(
                f"{_name(row)} cannot be scored: its dataset row has no {lacking} (it has {', '.join(sorted(row))}); "
                "add the column to data.train_files and data.val_files"
            )
        return {
            "data_source": row["data_source"],
            "solution_str": self.tokenizer.decode(output.response_ids, skip_special_tokens=True),
            "ground_truth": ground_truth,
            "extra_info": {**(row.get("extra_info") or {}), **output.extra_fields, "num_turns": output.num_turns},
        }

    async def _call(self, arguments: dict[str, Any]) -> Any:
        if self.on_loop:
            result = self.function(**arguments)
        else:
            result = await asyncio.to_thread(self.function, **arguments)
        return await result if inspect.isawaitable(result) else result

    def _finite(self, score: Any, row: dict[str, Any]) -> float:
        try:
            number = float(score)
        except (TypeError, ValueError):
            raise self._error(row, f"returned {score!r}, which is no number") from None
        if not math.isfinite(number):
            raise self._error(row, f"returned {number}")
        return number

    def _error(self, row: dict[str, Any], what: str) -> RewardError:
        return RewardError(
            f"reward function {describe_function(self.function)} {what} for trajectory {_name(row)} "
            f"(data_source {row['data_source']!r}, ground_truth {row['reward_model']['ground_truth']!r}); "
            "mend the function or choose another with reward.custom_reward_function.path and .name"
        )


def describe_function(function: Any) -> str:
    """`name (file:line)` of a reward function, or its repr where Python cannot tell."""
    function = getattr(function, "func", function)  # behind a partial
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", repr(function))
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code else name


def _name(row: dict[str, Any]) -> str:
    return f"{row.get('uid')}_{row.get('session_id')}"
