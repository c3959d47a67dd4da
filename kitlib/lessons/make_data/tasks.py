"""The three shipped tasks: problems, dataset rows in verl's schema, and the demonstrations of supervised training.

    mult_tool   "12*59=?"        one calculator call, then the answer. Most demonstrations guess instead of calling.
    sum_tool    "15+39+25=?"     one call an addition, 1 to 7 assistant turns. Most demonstrations guess at once.
    add         "12+34=?"        the answer, in one turn. Most demonstrations have one digit wrong.

The flaws are built in on purpose: what supervised training teaches badly is left for reinforcement learning to mend.
The tool tasks have two stages. In the first every demonstration calls, so that the model learns to call and to copy the
result; in the second most of them guess, so that it seldom does. Without the first stage there would be too few calls
to learn copying from, and a call that is sampled would earn no reward.
A problem is held out if the crc32 of its question is divisible by ten: it is then never demonstrated nor trained on.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Message = dict[str, str]

MAX_VAL_ROWS = 512
NUM_SUM_ROWS = 8000
MAX_TERMS = 7


@dataclass(frozen=True)
class Problem:
    """Two-digit numbers and the one operator between them, "*" or "+"."""

    terms: tuple[int, ...]
    operator: str

    @property
    def question(self) -> str:
        return self.operator.join(map(str, self.terms)) + "=?"

    @property
    def answer(self) -> int:
        return math.prod(self.terms) if self.operator == "*" else sum(self.terms)

    @property
    def held_out(self) -> bool:
        """A hash and not a formula of the terms: a model can be systematically good or bad on a formula."""
        return zlib.crc32(self.question.encode()) % 10 == 0


@dataclass(frozen=True)
class Flaws:
    """What is wrong with the demonstrations, as probabilities: the first two of a call, guess of a conversation."""

    bad_call: float = 0.0  # call the calculator with one digit wrong
    bad_copy: float = 0.0  # go on with one digit of the calculator's result wrong
    guess: float = 0.0  # answer at once, with a random number of `guess_range`
    guess_range: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Stage:
    """A part of supervised training: so many steps on demonstrations of this kind."""

    num_steps: int
    demonstrate: Callable[[Problem, random.Random], list[Message]]  # the messages after the question


@dataclass(frozen=True)
class Task:
    """One task and the recipe of its checkpoint."""

    name: str
    agent_name: str  # the agent loop that runs it: a column of the dataset
    operator: str
    problems: Callable[[], list[Problem]]  # all of them, train and held out, in shipping order
    draw: Callable[[random.Random], Problem]  # a random one for a demonstration
    stages: tuple[Stage, ...]
    max_turns: int  # assistant turns of the longest correct conversation

    @property
    def num_sft_steps(self) -> int:
        return sum(stage.num_steps for stage in self.stages)

    def draw_demonstration(self, stage: Stage, rng: random.Random) -> list[Message]:
        """A whole conversation about a problem that is not held out."""
        problem = self.draw(rng)
        while problem.held_out:
            problem = self.draw(rng)
        return [_message("user", problem.question), *stage.demonstrate(problem, rng)]


# problems


def _two_digits(rng: random.Random) -> int:
    return rng.randint(10, 99)


def _all_pairs(operator: str) -> list[Problem]:
    problems = [Problem((a, b), operator) for a in range(10, 100) for b in range(10, 100)]
    random.Random(0).shuffle(problems)
    return problems


def _draw_pair(operator: str, rng: random.Random) -> Problem:
    return Problem((_two_digits(rng), _two_digits(rng)), operator)


def _draw_sum(rng: random.Random) -> Problem:
    """2 to 7 terms, one more with probability 0.65 each time: the long tail of lengths that the task is there for."""
    num_terms = 2
    while num_terms < MAX_TERMS and rng.random() < 0.65:
        num_terms += 1
    return Problem(tuple(_two_digits(rng) for _ in range(num_terms)), "+")


def _draw_sums() -> list[Problem]:
    """Different sums until there are NUM_SUM_ROWS to train on and MAX_VAL_ROWS held out."""
    rng = random.Random(0)
    found: dict[Problem, None] = {}  # a set that keeps the order
    num_held_out = 0
    while num_held_out < MAX_VAL_ROWS or len(found) - num_held_out < NUM_SUM_ROWS:
        problem = _draw_sum(rng)
        num_held_out += problem.held_out and problem not in found
        found[problem] = None
    return list(found)


# demonstrations


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def one_digit_wrong(number: int, rng: random.Random) -> int:
    """The number with one digit replaced by another; the leading digit never becomes zero."""
    digits = list(str(number))
    place = rng.randrange(len(digits))
    digits[place] = rng.choice([d for d in "0123456789" if d != digits[place] and (d != "0" or place > 0)])
    return int("".join(digits))


def _calculate(operator: str, a: int, b: int) -> int:
    return a * b if operator == "*" else a + b


def _with_calculator(flaws: Flaws) -> Callable[[Problem, random.Random], list[Message]]:
    """One call a pair of numbers with the running result, then the answer; or, with the flaws, a guess or a slip."""

    def demonstrate(problem: Problem, rng: random.Random) -> list[Message]:
        if rng.random() < flaws.guess:
            return [_message("assistant", f"####{rng.randint(*flaws.guess_range)}")]
        messages, running = [], problem.terms[0]
        for term in problem.terms[1:]:
            if rng.random() < flaws.bad_call:
                term = one_digit_wrong(term, rng)
            messages.append(_message("assistant", f"<tool_call>{running}{problem.operator}{term}</tool_call>"))
            running = _calculate(problem.operator, running, term)
            messages.append(_message("tool", str(running)))
            if rng.random() < flaws.bad_copy:
                running = one_digit_wrong(running, rng)
        return [*messages, _message("assistant", f"####{running}")]

    return demonstrate


def _at_once(wrong: float) -> Callable[[Problem, random.Random], list[Message]]:
    """The answer without a calculator; a share `wrong` of them has one digit wrong."""

    def demonstrate(problem: Problem, rng: random.Random) -> list[Message]:
        answer = one_digit_wrong(problem.answer, rng) if rng.random() < wrong else problem.answer
        return [_message("assistant", f"####{answer}")]

    return demonstrate


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            name="mult_tool",
            agent_name="tool_agent",
            operator="*",
            problems=lambda: _all_pairs("*"),
            draw=lambda rng: _draw_pair("*", rng),
            stages=(
                Stage(700, _with_calculator(Flaws(bad_call=0.05, bad_copy=0.05))),
                Stage(300, _with_calculator(Flaws(bad_call=0.05, bad_copy=0.05, guess=0.84, guess_range=(100, 9801)))),
            ),
            max_turns=2,
        ),
        Task(
            name="add",
            agent_name="single_turn_agent",
            operator="+",
            problems=lambda: _all_pairs("+"),
            draw=lambda rng: _draw_pair("+", rng),
            stages=(Stage(1200, _at_once(wrong=0.75)),),
            max_turns=1,
        ),
        Task(
            name="sum_tool",
            agent_name="tool_agent",
            operator="+",
            problems=_draw_sums,
            draw=_draw_sum,
            stages=(
                Stage(1000, _with_calculator(Flaws(bad_call=0.02, bad_copy=0.02))),
                Stage(300, _with_calculator(Flaws(bad_call=0.02, bad_copy=0.02, guess=0.55, guess_range=(20, 693)))),
            ),
            max_turns=MAX_TERMS,
        ),
    )
}


# dataset rows


def train_problems(task: Task) -> list[Problem]:
    return [problem for problem in task.problems() if not problem.held_out]


def val_problems(task: Task) -> list[Problem]:
    """The first MAX_VAL_ROWS that are held out, few enough to validate on all of them at once."""
    return [problem for problem in task.problems() if problem.held_out][:MAX_VAL_ROWS]


def build_rows(task: Task) -> dict[str, list[dict[str, Any]]]:
    """{"train": rows, "val": rows} in verl's schema; `extra_info.index` counts within the split."""
    splits = {"train": train_problems(task), "val": val_problems(task)}
    return {
        split: [_row(task, split, index, problem) for index, problem in enumerate(problems)]
        for split, problems in splits.items()
    }


def _row(task: Task, split: str, index: int, problem: Problem) -> dict[str, Any]:
    return {
        "data_source": f"kitlib/{task.name}",
        "prompt": [_message("user", problem.question)],
        "ability": "math",
        "agent_name": task.agent_name,
        "reward_model": {"style": "rule", "ground_truth": str(problem.answer)},
        "extra_info": {"split": split, "index": index, "num_terms": len(problem.terms)},
    }
