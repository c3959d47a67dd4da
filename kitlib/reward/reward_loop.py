"""Scores one trajectory, inside the agent loop, as soon as the session ends.

verl 0.9.1: experimental/reward_loop/reward_loop.py, RewardLoopWorker, with NaiveRewardManager of
experimental/reward_loop/reward_manager/naive.py.

    input    the outputs of one session and the dataset row of its prompt; only the last output is scored
    calls    compute_score(data_source, solution_str, ground_truth, extra_info), or a reward model in its own pool
    output   (score, reward_extra_info): a number gives {"acc": number}, a dict gives `score` and all its items

    what may go wrong                        kitlib.reward_error_score: null    a number
    exception in the function                error that ends the run            that score, counted
    no answer in kitlib.reward_timeout s     error that ends the run            that score, counted
    NaN, infinite, no number; no rule        error that ends the run            error that ends the run

A row that got the error score says so in its reward_extra_info: {"acc": score, "reward_error": "what happened"}.

Differs from verl: the score must be a finite number. verl stores a NaN, which makes the advantages of the whole group
NaN; here it is an error, as is an exception in the function, and the error names the trajectory, the function and the
way out. The rules of kitlib run on the event loop, where 128 of them take 1.5 ms, decoding included; a custom function
may be slow, so it gets a thread, as all functions do in verl (9 ms for 128). `extra_info` is copied, not written to.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from kitlib.reward.calling import NoAnswerError, RewardFailures, call
from kitlib.reward.load import load_reward_fn
from kitlib.reward.rules import RewardError, default_compute_score

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from kitlib.reward.reward_model import RewardModel

logger = logging.getLogger(__name__)


class ScorableOutput(Protocol):
    """What the scorer reads of an agent loop's output."""

    response_ids: list[int]
    num_turns: int | None
    extra_fields: dict[str, Any]


class RewardLoopWorker:
    """Holds the reward function of the config. Stateless, so any number of event loops may share one.

    Args:
        config: reads `reward.custom_reward_function`, kitlib.reward_timeout and kitlib.reward_error_score.
        tokenizer: decodes the responses.
        reward_model: scores instead of a function.
    """

    def __init__(
        self, config: Any, tokenizer: PreTrainedTokenizerBase, reward_model: RewardModel | None = None
    ) -> None:
        self.tokenizer = tokenizer
        self.reward_model = reward_model
        self.function = load_reward_fn(config)
        self.timeout = config.kitlib.reward_timeout
        self.error_score = config.kitlib.reward_error_score
        self.failures = RewardFailures()
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
            RewardError: no ground truth, no rule for the data source, an exception in the function or no answer in time
                (without kitlib.reward_error_score), or a score that is no finite number.
        """
        if self.reward_model is not None:
            text = str(self.tokenizer.decode(outputs[-1].response_ids, skip_special_tokens=True))
            return self._finite(await self.reward_model.score_later(row["raw_prompt"], text), row), {}
        arguments = self._arguments(outputs[-1], row)
        try:
            result = await call(self.function, arguments, self.on_loop, self.timeout)
        except RewardError:
            raise
        except NoAnswerError as error:
            return self._failed("timeouts", f"gave no answer in {self.timeout:g} s (kitlib.reward_timeout)", row, error)
        except Exception as error:  # noqa: BLE001  _failed raises it again, or counts it
            return self._failed("exceptions", f"raised {type(error).__name__}: {error}", row, error)
        if not isinstance(result, dict):
            score = self._finite(result, row)
            return score, {"acc": score}
        if "score" not in result:
            raise self._error(row, f"returned a dict without 'score': {result!r}")
        return self._finite(result["score"], row), dict(result)

    def _failed(self, kind: str, what: str, row: dict[str, Any], error: Exception) -> tuple[float, dict[str, Any]]:
        if self.error_score is None:
            raise self._error(row, what) from error
        self.failures.add(kind)
        score = self.error_score
        logger.warning("%s %s for %s: scored %g", self._scorer(), what, _name(row), score)
        return score, {"acc": score, "reward_error": what}

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

    def _finite(self, score: Any, row: dict[str, Any]) -> float:
        try:
            number = float(score)
        except (TypeError, ValueError):
            raise self._error(row, f"returned {score!r}, which is no number") from None
        if not math.isfinite(number):
            raise self._error(row, f"returned {number}")
        return number

    def _scorer(self) -> str:
        if self.reward_model is not None:
            return f"reward model {self.reward_model.path}"
        return f"reward function {describe_function(self.function)}"

    def _error(self, row: dict[str, Any], what: str) -> RewardError:
        ground_truth = (row.get("reward_model") or {}).get("ground_truth")
        return RewardError(
            f"{self._scorer()} {what} for trajectory {_name(row)} "
            f"(data_source {row.get('data_source')!r}, ground_truth {ground_truth!r}); "
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
