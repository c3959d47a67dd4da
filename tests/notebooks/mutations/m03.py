"""Mutations under which 03_submit_prompts must fail."""

from __future__ import annotations


def the_last_fetch_is_not_dropped() -> None:
    """A pass ends with a fetch that is not full."""
    from kitlib.dataset import dataloaders

    original = dataloaders._stateful_dataloader
    dataloaders._stateful_dataloader = lambda **settings: original(**{**settings, "drop_last": False})


def a_loader_begins_anew_after_a_restart() -> None:
    """The saved place in the data is not taken up."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    StatefulDataLoader.load_state_dict = lambda self, state: None


def a_marker_never_carries_its_row() -> None:
    """The async modes register prompts as sync does."""
    from kitlib.trainer.feeding import Feeding

    original = Feeding.register_prompts
    Feeding.register_prompts = lambda self, batch, partition_id, with_rows=False: original(self, batch, partition_id)


def the_sampler_copes_with_underscores() -> None:
    """The group of a key is all but its last two numbers."""
    from kitlib.replay_buffer import prompts

    prompts.uid_of = lambda key: key.rsplit("_", 2)[0]
