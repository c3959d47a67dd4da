"""A reward that a server computes: one HTTP request a trajectory, with retries and a time limit.

verl 0.9.1: experimental/reward_loop/reward_loop.py, RewardLoopWorker._post_request (retries, but no time limit), and
the remote functions that its examples write with aiohttp. Needs nothing beside Python.

    reward.custom_reward_function.path=pkg://kitlib.reward.remote
    reward.custom_reward_function.name=remote_score
    reward.custom_reward_function.reward_kwargs.url=http://127.0.0.1:8000/score

    POST url   {"data_source": ..., "solution_str": ..., "ground_truth": ..., "extra_info": {...}}
    answer     a number, or an object with "score" and whatever else is to be kept

Tried again: no connection, no answer in time, status 429 and 5xx, an answer that is no JSON. Not tried again: other
statuses, which say that the request is wrong. The wait doubles from try to try.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from typing import Any

from kitlib.errors import KitError

LONGEST_WAIT = 30.0  # seconds


class RemoteRewardError(KitError):
    """A reward server that gave no score; the message names the URL, the number of tries and the last answer."""


def remote_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: dict[str, Any] | None = None,
    *,
    url: str,
    timeout: float = 10.0,
    num_retries: int = 3,
    first_wait: float = 0.5,
    headers: dict[str, str] | None = None,
) -> float | dict[str, Any]:
    """Ask the server at `url`. A plain function: the reward loop gives it a thread.

    Args:
        timeout: seconds for one try; num_retries: tries after the first; first_wait: seconds before the second one.

    Raises RemoteRewardError when the last try has failed, or for an answer without a score.
    """
    content = {"data_source": data_source, "solution_str": solution_str, "ground_truth": ground_truth}
    body = json.dumps({**content, "extra_info": extra_info or {}}, default=str).encode()
    request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json", **(headers or {})})
    for attempt in range(num_retries + 1):
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                return _score_in(json.load(response), url)
        except urllib.error.HTTPError as error:
            problem = f"status {error.code} {error.reason}"
            if error.code != 429 and error.code < 500:
                raise RemoteRewardError(f"{url} refused the request with {problem}") from error
            last: Exception = error
        except (OSError, http.client.HTTPException, ValueError) as error:  # a URLError and a time-out are OSErrors
            problem, last = f"{type(error).__name__}: {error}", error
        if attempt < num_retries:
            time.sleep(min(first_wait * 2**attempt, LONGEST_WAIT))
    raise RemoteRewardError(f"{url} gave no score in {num_retries + 1} tries; the last one: {problem}") from last


def _score_in(answer: Any, url: str) -> float | dict[str, Any]:
    is_number = isinstance(answer, int | float) and not isinstance(answer, bool)
    if is_number or (isinstance(answer, dict) and "score" in answer):
        return answer
    raise RemoteRewardError(f"{url} answered {answer!r}: expected a number or an object with 'score'")
