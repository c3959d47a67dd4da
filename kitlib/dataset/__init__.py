"""Prompts: parquet files in verl's schema, and the dataloaders that hand them to the trainer."""

from kitlib.dataset.dataloaders import create_dataloaders
from kitlib.dataset.rl_dataset import DatasetError, RLHFDataset, collate_fn

__all__ = ["DatasetError", "RLHFDataset", "collate_fn", "create_dataloaders"]
