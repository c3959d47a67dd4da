"""Begin, end and seconds of the stages of the serial pipeline.

verl 0.9.1: the `marked_timer` calls in trainer/ppo/ray_trainer.py, RayPPOTrainer.fit. The contract of V1 (fields that
single rows may lack) has no place here: a column of a DataProto is there for all rows or for none.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from kitlib.contract import StageRecord
from kitlib.trainer.v0.protocol import DataProto

T = TypeVar("T")


class StageOwner(Protocol):
    """What `recorded` needs of the trainer."""

    global_steps: int
    timing_raw: dict[str, float]

    def on_stage(self, record: StageRecord) -> None: ...


def recorded(timer: str = "") -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Make a method a stage under its own name; its seconds are added to `self.timing_raw[timer]`."""

    def decorate(method: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(method)
        def run(self: StageOwner, *args: Any, **kwargs: Any) -> T:
            num_rows = next((len(argument) for argument in args if isinstance(argument, DataProto)), 0)
            record = StageRecord(method.__name__, self.global_steps, time.time(), num_rows)
            self.on_stage(record)
            begin = time.perf_counter()
            try:
                result = method(self, *args, **kwargs)
            except BaseException as error:
                record.error = f"{type(error).__name__}: {error}"
                raise
            finally:
                record.seconds = time.perf_counter() - begin
                self.on_stage(record)
            if timer:
                self.timing_raw[timer] = self.timing_raw.get(timer, 0.0) + record.seconds
            return result

        return run

    return decorate
