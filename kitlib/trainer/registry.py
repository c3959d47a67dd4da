"""Trainer classes by the name that `trainer.v1.trainer_mode` gives them.

verl 0.9.1: trainer/ppo/v1/trainer_base.py, register_trainer and get_trainer_cls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from kitlib.trainer.errors import TrainerError

if TYPE_CHECKING:
    from kitlib.trainer.base import PPOTrainer

TRAINER_REGISTRY: dict[str, type[PPOTrainer]] = {}
T = TypeVar("T", bound="type[PPOTrainer]")


def register_trainer(name: str) -> Callable[[T], T]:
    """Class decorator: make a trainer available as `trainer.v1.trainer_mode=<name>`. A name can be taken once."""

    def decorate(cls: T) -> T:
        if TRAINER_REGISTRY.get(name, cls) is not cls:
            raise TrainerError(
                f"trainer mode {name!r} is already {TRAINER_REGISTRY[name].__qualname__}; pick another name"
            )
        TRAINER_REGISTRY[name] = cls
        return cls

    return decorate


def get_trainer_cls(name: str) -> type[PPOTrainer]:
    """The trainer class of a mode; an unknown mode is an error that lists the known ones."""
    if name not in TRAINER_REGISTRY:
        raise TrainerError(
            f"trainer.v1.trainer_mode={name}: no such trainer; known are {', '.join(sorted(TRAINER_REGISTRY))}"
        )
    return TRAINER_REGISTRY[name]
