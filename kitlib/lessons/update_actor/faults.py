"""Four broken updates to tell apart by what they print: each has one field of its rows wrong, and none raises.

mask     response_mask is 0 everywhere: nothing is trained
shift    old_log_probs lie one token too far to the right: the ratio compares one token with another
count    loss_mask counts the tokens of the tool, too: the loss is divided by too many tokens
sign     the advantages have the wrong sign: good answers are made less likely

cases = broken_updates(trainer, batch)    a dry run of each, under the letters A to D in an order from `seed`
cases.check("mask", "shift", "count", "sign")
cases.plant("A"); ...; cases.mend()       to look at the rows
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kitlib.inspector import View
from kitlib.lessons.answers import Answer, mistakes, open_answer, right, unanswered
from kitlib.lessons.expect import LessonError
from kitlib.lessons.reading import name_of
from kitlib.lessons.update_actor.looking import Look, dry_run, numbers
from kitlib.transfer_queue import KVBatchMeta, jagged

FAULTS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "mask": ("response_mask", torch.zeros_like),
    "shift": ("old_log_probs", lambda row: row.roll(1)),
    "count": ("loss_mask", torch.ones_like),
    "sign": ("advantages", lambda row: -row),
}
SHOWN = ("pg_loss", "ppo_kl", "pg_clipfrac", "grad_norm")


class BrokenUpdates:
    """The four cases on one batch; the weights and, after `mend`, the queue are as before."""

    def __init__(self, trainer: Any, batch: KVBatchMeta, seed: int = 0) -> None:
        self.trainer, self.batch = trainer, batch
        names = random.Random(seed).sample(sorted(FAULTS), len(FAULTS))
        self._fault = dict(zip("ABCD", names, strict=True))
        self._kept: dict[str, Tensor] = {}
        self.looks: dict[str, Look] = {"sound": dry_run(trainer, batch)}
        for letter in self._fault:
            self.plant(letter)
            try:
                self.looks[letter] = dry_run(trainer, batch)
            finally:
                self.mend()

    def table(self) -> View:
        """What each of them prints, and what the sound update prints."""
        return numbers(self.looks, SHOWN, "one sound update and four broken ones")

    def reveal(self, letter: str) -> str:
        """The fault that stands under a letter."""
        return self._fault[letter]

    def letter_of(self, fault: str) -> str:
        """The letter under which a fault is found."""
        return next(letter for letter, name in self._fault.items() if name == fault)

    def plant(self, letter: str) -> None:
        """Put one fault into the queue, on every row."""
        if self._kept:
            raise LessonError("mend the fault that is planted before you plant another one")
        field, spoil = FAULTS[self._fault[letter]]
        column = self.trainer.pull(self.batch, field)[field]
        self._kept = {field: column}
        self.trainer.push(self.batch, **{field: jagged([spoil(row) for row in column.unbind()])})

    def mend(self) -> None:
        """The rows as they were."""
        if self._kept:
            self.trainer.push(self.batch, **self._kept)
            self._kept = {}

    def check(self, *answers: Any) -> Answer:
        """The faults of A, B, C and D, in this order."""
        if unanswered(*answers):
            return open_answer()
        names = [_fault_meant(answer) for answer in answers]
        if unknown := [answer for answer, name in zip(answers, names, strict=True) if name not in FAULTS]:
            return mistakes([f"{unknown[0]!r} is none of {', '.join(FAULTS)}"])
        if len(names) != len(self._fault):
            return mistakes([f"one fault for each of {', '.join(self._fault)}, not {len(names)}"])
        wrong = [
            f"{letter} is not {said!r}: {self._evidence(letter, said)}"
            for letter, said in zip(self._fault, names, strict=True)
            if said != self._fault[letter]
        ]
        return mistakes(wrong) if wrong else right("each fault leaves its own trace, and none of them raises an error")

    def _evidence(self, letter: str, said: str) -> str:
        """Why the numbers of this case do not fit the fault that the reader has named."""
        look, sound = self.looks[letter], self.looks["sound"]
        if said == "mask":
            return f"with nothing to train the gradient would be 0, and its norm is {look['grad_norm']:.3f}"
        if said == "shift":
            return "with old log-probs of other tokens ppo_kl and pg_clipfrac would be far from 0"
        if said == "count":
            return (
                "a wrong count changes the size of the loss and of the gradient by the same factor, "
                f"and here they are {_factor(look, sound, 'pg_loss')} and {_factor(look, sound, 'grad_norm')}"
            )
        return "a wrong sign would turn the sign of pg_loss around and leave grad_norm and ppo_kl as they are"


def _fault_meant(answer: Any) -> str:
    """The name of a fault, also by the field that it spoils."""
    name = name_of(answer).lower()
    return next((fault for fault, (field, _) in FAULTS.items() if name == field), name)


def _factor(look: Look, sound: Look, name: str) -> str:
    return f"{look[name] / sound[name]:+.2f} of the sound {name}"


def broken_updates(trainer: Any, batch: KVBatchMeta, seed: int = 0) -> BrokenUpdates:
    """Four updates, each with one fault, and the sound one beside them. Changes no weight."""
    return BrokenUpdates(trainer, batch, seed)
