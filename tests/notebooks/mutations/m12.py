"""Mutations under which 12_survive_restart must fail."""

from __future__ import annotations


def the_data_begins_anew() -> None:
    """The loader's place in the data is not taken up."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    StatefulDataLoader.load_state_dict = lambda self, state: None


def the_optimizer_begins_anew() -> None:
    """Adam's moments are not taken up."""
    from kitlib.workers.engine import state

    state._load_optimizer = lambda engine, path: None


def the_pointer_is_not_believed() -> None:
    """A run goes on from the first checkpoint that was made."""
    from kitlib.trainer import checkpoint

    checkpoint.find_latest = lambda root: root / "global_step_1" if (root / "global_step_1").exists() else None


def rows_of_the_trained_stay() -> None:
    """After a restart, what has no marker is left in the queue."""
    from kitlib.trainer.checkpointing import Checkpointing

    original = Checkpointing.reissue_inflight_prompts

    def reissue(self):
        self.tq.kv_clear = lambda keys, partition_id: None
        try:
            return original(self)
        finally:
            del self.tq.kv_clear

    Checkpointing.reissue_inflight_prompts = reissue
