"""What `PPOTrainer.fit` calls, in order: hooks of the mode, stages, and words to the servers; and a Ctrl-C.

calls = CallLog()
TaskRunner().run(config, observers=[calls])
print(calls.text(step=1))
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Literal, NamedTuple
from unittest.mock import patch

from kitlib.contract import StageRecord
from kitlib.trainer.observers import Observer

HOOKS = (
    "on_train_begin",
    "on_train_end",
    "on_step_begin",
    "on_step_end",
    "on_sample_begin",
    "on_sample_end",
    "on_validate_begin",
    "on_validate_end",
)
TO_SERVERS = (
    "update_weights",
    "sleep_replicas",
    "wake_up_replicas",
    "abort_replicas",
    "resume_generation_replicas",
)


class Call(NamedTuple):
    """One call of a V1 run; `depth` counts the calls of the log that it was made in."""

    step: int
    depth: int
    kind: Literal["hook", "stage", "servers"]
    name: str


class CallLog(Observer):
    """The calls of one `fit`, in the order of their begin."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._depth = 0
        self._patches = ExitStack()

    def of_step(self, step: int) -> list[Call]:
        return [call for call in self.calls if call.step == step]

    def text(self, step: int) -> str:
        """One line a call: what kind, and the name, indented by the call that made it."""
        return "\n".join(f"{call.kind:9}{'    ' * call.depth}{call.name}" for call in self.of_step(step))

    def on_fit_begin(self, trainer: Any) -> None:
        for name in HOOKS:
            self._listen(trainer, trainer, "hook", name)
        for name in TO_SERVERS:
            self._listen(trainer, trainer.checkpoint_manager, "servers", name)

    def on_fit_end(self, trainer: Any) -> None:
        self._patches.close()

    def on_stage(self, trainer: Any, record: StageRecord) -> None:
        if record.seconds is None:
            self.calls.append(Call(trainer.global_steps, self._depth, "stage", record.stage))
            self._depth += 1
        else:
            self._depth -= 1

    def _listen(self, trainer: Any, owner: Any, kind: Literal["hook", "servers"], name: str) -> None:
        """Log every call of a method of `owner`."""
        original: Callable[..., Any] = getattr(owner, name)

        def logged(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(Call(trainer.global_steps, self._depth, kind, name))
            self._depth += 1
            try:
                return original(*args, **kwargs)
            finally:
                self._depth -= 1

        self._patches.enter_context(patch.object(owner, name, logged))


class PressCtrlC(Observer):
    """Ends a run in the way a person does, at the begin of a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, trainer: Any) -> None:
        if trainer.global_steps == self.step:
            raise KeyboardInterrupt(f"in step {self.step}")
