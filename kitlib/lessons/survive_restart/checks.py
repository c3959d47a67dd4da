"""Checks of the predictions of notebook 12; the truth comes from the trainer, the loader and the log of the queue."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kitlib.inspector.history import Events, events_of, stage_of
from kitlib.keys import uid_of
from kitlib.lessons.answers import Answer, mistakes, open_answer, right, unanswered
from kitlib.lessons.plain_checks import check_number, names_mistakes

if TYPE_CHECKING:
    from kitlib.trainer.base import PPOTrainer


def trained_questions(run_dir: Path) -> dict[int, list[str]]:
    """{step: the questions of its rows, each once}, from the rollouts that the run has dumped."""
    lines = (run_dir / "rollouts.jsonl").read_text(encoding="utf-8").splitlines()
    questions: dict[int, set[str]] = {}
    for row in map(json.loads, lines):
        questions.setdefault(row["step"], set()).add(row["input"].split("\n")[1])
    return {step: sorted(own) for step, own in sorted(questions.items())}


def check_first_step(answer: Any, trainer: PPOTrainer) -> Answer:
    """Which step does a resumed trainer make first?"""
    assert trainer.resumed_from is not None, "this trainer was not resumed"
    saved = int(trainer.resumed_from.name.rsplit("_", 1)[1])
    names: dict[float, str] = {
        saved + 2: f"the checkpoint of step {saved + 1} was not finished, so its update is lost: it is made again",
        saved: f"the update of step {saved} is in the weights that were loaded; to make it again would train it twice",
        1: "that would be a new start: a checkpoint was found",
    }
    return check_number(answer, saved + 1, names, right=f"loaded step {saved}, so step {saved + 1} is the first")


def check_never_trained(answer: Any, loader: Iterable[Mapping[str, Any]], killed_after: int) -> Answer:
    """How many rows does one pass miss if the loader starts anew after `killed_after` steps? Runs through it once."""
    fetches = [list(fetch["index"]) for fetch in loader]
    rows = {row for fetch in fetches for row in fetch}
    again = fetches[:killed_after] + fetches[: len(fetches) - killed_after]
    missed = rows - {row for fetch in again for row in fetch}
    names: dict[float, str] = {
        0: "that is so with the saved place: here the loader begins with its first rows again",
        len(rows): "the first steps did train some rows",
        len(rows) - len(missed): "that is the number of rows that are trained; the question is how many are not",
        len(fetches) - killed_after: "that is the number of steps; count the rows in them",
    }
    names.pop(len(missed), None)
    said = f"the first {len(rows) - len(missed)} rows are trained twice, the other {len(missed)} never in this pass"
    return check_number(answer, len(missed), names, right=said)


_NOT_AGAIN = {
    "finished": "it has settled and all its rows are there: it waits to be sampled",
    "failed": "a failure has settled, too: the sampler of the async modes evicts it and submits another prompt",
    "sampled": "it has no marker any more: its rows were trained before the checkpoint was written",
}
_NOT_CLEARED = {
    "finished": "its rows are good and wait to be sampled",
    "failed": "it has settled: the rows of its other sessions go when the sampler evicts it",
    "pending": "it had no row to clear",
}


def check_reissue(again: Any, cleared: Any, prompts: Mapping[str, str], events: Events) -> Answer:
    """Which prompts were submitted again, and of which were rows cleared? prompts: {word: uid}; events: of the resumed
    run, up to the reissue."""
    if unanswered(again, cleared):
        return open_answer()
    words = {uid: word for word, uid in prompts.items()}
    submitted, gone = set(), set()
    for event in events_of(events):
        if event.is_put and stage_of(event) == "submit_batch_to_rollout":
            submitted |= {words[key] for key in event.keys}
        elif event.verb == "kv_clear":
            gone |= {words[uid_of(key)] for key in event.keys}
    wrong = [f"submitted again: {text}" for text in names_mistakes(again, submitted, _NOT_AGAIN)]
    wrong += [f"cleared: {text}" for text in names_mistakes(cleared, gone, _NOT_CLEARED)]
    if wrong:
        return mistakes(wrong)
    return right("what was in flight begins anew, without its old rows; what is in the weights goes; the rest waits")
