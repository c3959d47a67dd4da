"""The doctor at the borders of the stages: a few cheap rules before each stage of a strict run, all when one fails.

verl 0.9.1 has no counterpart. Before a stage only the rules that are marked `border` run, over metadata alone; what
they find is said only if the stage fails. Then the whole doctor looks, values included, and what is wrong stands in
the message of the error, so that it reaches the terminal, the record of the stage and the post-mortem of the run.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from kitlib.contract import StageRecord
from kitlib.errors import KitError, add_remark
from kitlib.inspector.doctor import Finding, Report, doctor
from kitlib.inspector.doctor.rules import NOT_AT_BORDERS
from kitlib.trainer.observers import Observer

if TYPE_CHECKING:
    from kitlib.trainer.base import PPOTrainer

# Stages that fetch tensors: a look before each. Of the others only a failure is looked at.
LOOKED_AT = (
    "compute_reward_colocate",
    "compute_old_log_prob",
    "compute_ref_log_prob",
    "compute_values",
    "compute_advantage",
    "update_critic",
    "update_actor",
)
OTHERS = ("sample", "balance_batch", "compute_metrics", "validate")
NUM_SAID = 3  # findings in a message


class BorderDoctor(Observer):
    """Every trainer with kitlib.strict has one among its observers.

    seen:    the look before the stage that began last, if the stage is looked at.
    failure: the looks at the stage that has failed, None as long as none has.
    """

    def __init__(self) -> None:
        self.seen: Report | None = None
        self.failure: Report | None = None

    def on_stage(self, trainer: PPOTrainer, record: StageRecord) -> None:
        if not trainer.strict:
            return
        if record.seconds is None:
            self.seen = _look(trainer, record.stage, border=True) if record.stage in LOOKED_AT else None
        elif record.error and record.stage in (*LOOKED_AT, *OTHERS) and not _has_died(trainer):
            self._failed(trainer, record)

    def _failed(self, trainer: PPOTrainer, record: StageRecord) -> None:
        looks = [look for look in (self.seen, _look(trainer, record.stage)) if look is not None]
        found = [one for look in looks for one in (look.errors or look.warnings)]
        said = list({(one.kind, one.keys): one for one in found}.values())
        if not said:
            return
        self.failure = next(look for look in reversed(looks) if not look.ok)
        remark = _remark(record.stage, said)
        record.error = f"{record.error}\n{remark}"
        if (error := sys.exc_info()[1]) is not None:  # the stage decorator calls while the error is on its way
            add_remark(error, remark)


def _has_died(trainer: PPOTrainer) -> bool:
    """True if a background task has ended the run: its error says why, and what the queue looks like follows of it."""
    manager = getattr(trainer, "agent_loop_manager", None)
    return manager is not None and manager.ledger.failed_event.is_set()


def _look(trainer: PPOTrainer, stage: str, border: bool = False) -> Report | None:
    """A report; None for a queue that no picture can be taken of: the doctor must not be why a run stops."""
    try:
        return doctor(
            trainer.tq,
            stage=stage,
            config=trainer.config,
            global_steps=trainer.global_steps,
            values=not border,
            without=NOT_AT_BORDERS if border else (),
        )
    except KitError:
        return None


def _remark(stage: str, said: list[Finding]) -> str:
    lines = [f"  {one.kind}: {one.says} {one.way_out}" for one in said[:NUM_SAID]]
    more = [f"  and {len(said) - NUM_SAID} more: doctor(trainer.tq, stage={stage!r})"] if len(said) > NUM_SAID else []
    return "\n".join([f"  The doctor, looking at the queue around {stage}:", *lines, *more])
