"""The training and the validation dataloader of a run.

verl 0.9.1: trainer/ppo/v1/trainer_base.py, PPOTrainer._init_dataloader, and create_rl_dataset and create_rl_sampler of
trainer/ppo/utils.py. Left out: the forced data.gen_batch_size=1 of modes that refill groups, which the trainer decides.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sized
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Dataset, Sampler, SequentialSampler

from kitlib.dataset.rl_dataset import DatasetError, RLHFDataset, collate_fn

if TYPE_CHECKING:
    from torchdata.stateful_dataloader import StatefulDataLoader
    from transformers import PreTrainedTokenizerBase


def create_dataloaders(
    config: Any, tokenizer: PreTrainedTokenizerBase, tools: list[Any] | None = None
) -> tuple[StatefulDataLoader, StatefulDataLoader]:
    """The training and the validation dataloader of a run; their batches are what collate_fn makes.

    Train: batches of data.gen_batch_size prompts (null: data.train_batch_size), shuffled from data.seed if data.shuffle
    is on, the incomplete last one dropped; `state_dict()` and `load_state_dict()` resume in the middle of an epoch.
    Val: batches of data.val_batch_size prompts (null: one batch), nothing dropped. Raises DatasetError.
    """
    dataset_class = _dataset_class(config)
    train, val = (
        dataset_class(
            data_files=config.select(f"data.{split}_files", None) or [],
            tokenizer=tokenizer,
            config=config.data,
            max_samples=config.select(f"data.{split}_max_samples", -1),
            tools=tools,
        )
        for split in ("train", "val")
    )
    train_loader = _stateful_dataloader(
        dataset=train,
        batch_size=_train_batch_size(config, train),
        num_workers=config.select("data.dataloader_num_workers", 0),
        drop_last=True,
        collate_fn=collate_fn,
        sampler=_train_sampler(config, train),
    )
    val_loader = _stateful_dataloader(
        dataset=val,
        batch_size=config.select("data.val_batch_size", None) or len(val),
        num_workers=config.select("data.dataloader_num_workers", 0),
        shuffle=config.select("data.validation_shuffle", False),
        drop_last=False,
        collate_fn=collate_fn,
    )
    return train_loader, val_loader


def _dataset_class(config: Any) -> Callable[..., Any]:
    """RLHFDataset, or the class data.custom_cls.name of the file data.custom_cls.path: same arguments, by keyword."""
    path = config.select("data.custom_cls.path", None)
    if path is None:
        return RLHFDataset
    from kitlib.user_code import load_user_object

    found = load_user_object(path, config.data.custom_cls.name, "data.custom_cls.path")
    if not (isinstance(found, type) and issubclass(found, Dataset)):
        raise DatasetError(f"data.custom_cls.name={config.data.custom_cls.name} is no torch.utils.data.Dataset class")
    return found


def _train_sampler(config: Any, train: Sized) -> Sampler:
    """Random or sequential. A sampler with its own generator is what continues in the same order after a resume."""
    if not config.select("data.shuffle", True):
        return SequentialSampler(train)
    generator = torch.Generator()
    if config.select("data.seed", None) is not None:
        generator.manual_seed(config.data.seed)
    return _torchdata().sampler.RandomSampler(train, generator=generator)


def _train_batch_size(config: Any, train: Sized) -> int:
    """Prompts a dataloader fetch. Raises DatasetError if the dataset does not fill one batch."""
    key = "data.gen_batch_size" if config.select("data.gen_batch_size", None) else "data.train_batch_size"
    size: int = config.select(key, 0)
    if not 0 < size <= len(train):
        filtered = getattr(train, "num_filtered", 0)
        note = f", {filtered} more were dropped by data.filter_overlong_prompts" if filtered else ""
        raise DatasetError(
            f"{key}={size} does not make one batch: data.train_files has {len(train)} prompts{note}; "
            f"set {key} to a number from 1 to {len(train)}"
        )
    return size


def _stateful_dataloader(**arguments: Any) -> StatefulDataLoader:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="'set_vital' is deprecated")  # torchdata 0.11 calls it on torch 2.13
        return _torchdata().StatefulDataLoader(**arguments)


def _torchdata() -> Any:
    """torchdata.stateful_dataloader, with its submodule sampler. Raises DatasetError if it is not installed."""
    try:
        import torchdata.stateful_dataloader.sampler
    except ImportError as error:
        raise DatasetError(f"the dataloaders need torchdata: pip install torchdata ({error})") from error
    return torchdata.stateful_dataloader
