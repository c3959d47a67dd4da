"""Prompts from verl-format parquet files.

verl 0.9.1: utils/dataset/rl_dataset.py, RLHFDataset and collate_fn. Left out: images, video and audio; json files;
remote paths; loading tools from data.tool_config_path (the schemas are passed in); filter_overlong_prompts_workers.

A row of the dataset is the row of the file (so any further column, `agent_name` or your own, travels with it) plus

    raw_prompt          the chat messages of column data.prompt_key; that column stays in the row, too
    index               extra_info["index"], or 0
    tools_kwargs        extra_info["tools_kwargs"], or {}
    interaction_kwargs  extra_info["interaction_kwargs"], or {}
    dummy_tensor        uint8 [1], so that a batch is never without a tensor

No token ids: the agent loop applies the chat template. The dataset only measures the prompts with it.

    data.filter_overlong_prompts=true    prompts over data.max_prompt_length tokens are dropped
    data.truncation=error (default)      otherwise one such prompt is an error, before anything is generated
    data.truncation=left|right|middle    otherwise it is let through, and the agent loop cuts it
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Dataset

from kitlib.errors import KitError

if TYPE_CHECKING:
    import pyarrow as pa
    from transformers import PreTrainedTokenizerBase

Row = dict[str, Any]

TRUNCATIONS = ("error", "left", "right", "middle")
_MEDIA_COLUMNS = {"image_key": "images", "video_key": "videos", "audio_key": "audios"}


class DatasetError(KitError):
    """A data file or a data.* setting that cannot be trained on; the message names the file, the row or the key."""


class RLHFDataset(Dataset):
    """Rows of one or more parquet files, in file order, as the module docstring describes them.

    `config` is the data group of the settings (`config.data`): prompt_key, max_prompt_length, filter_overlong_prompts,
    truncation, shuffle, seed and apply_chat_template_kwargs are read, with verl's default for one that it lacks.
    `tools` are the schemas that the agent loop puts into the prompt; with them the lengths measured here are true.
    """

    def __init__(
        self,
        data_files: str | Path | Sequence[str | Path],
        tokenizer: PreTrainedTokenizerBase,
        config: Any,
        max_samples: int = -1,
        tools: list[Any] | None = None,
    ) -> None:
        """Read and check the files; max_samples <= 0 means all rows. Raises DatasetError."""
        self.data_files = [data_files] if isinstance(data_files, (str, Path)) else list(data_files)
        self.tokenizer = tokenizer
        self.config = config
        self.tools = tools
        self.prompt_key: str = self._option("prompt_key", "prompt")
        self.max_prompt_length: int = self._option("max_prompt_length", 512)
        self._template_kwargs = {**(self._option("apply_chat_template_kwargs", None) or {}), "tokenize": False}
        self._media_columns = [self._option(option, column) for option, column in _MEDIA_COLUMNS.items()]
        self.num_filtered = 0  # prompts that filter_overlong_prompts dropped
        self.table = self._limit_overlong(self._sample(self._read(), max_samples))
        if len(self) == 0:
            why = f"all {self.num_filtered} are longer than data.max_prompt_length={self.max_prompt_length} tokens"
            raise DatasetError(f"no prompt left in {self}: {why if self.num_filtered else 'there are no rows'}")

    def __str__(self) -> str:
        return ", ".join(map(str, self.data_files))

    def __len__(self) -> int:
        return self.table.num_rows

    def __getitem__(self, item: int) -> Row:
        row: Row = self.table.slice(range(len(self))[item], 1).to_pylist()[0]
        for column in self._media_columns:
            if row.pop(column, None):
                raise DatasetError(f"row {item} of {self} has {column}; kitlib trains on text alone, so drop such rows")
        extra_info = row.get("extra_info") or {}
        return {
            **row,
            "extra_info": extra_info,
            "raw_prompt": row[self.prompt_key],
            "index": extra_info.get("index", 0),
            "tools_kwargs": extra_info.get("tools_kwargs") or {},
            "interaction_kwargs": extra_info.get("interaction_kwargs") or {},
            "dummy_tensor": torch.zeros(1, dtype=torch.uint8),
        }

    def _option(self, name: str, default: Any) -> Any:
        return getattr(self.config, name, default)

    def _read(self) -> pa.Table:
        pa, _ = _pyarrow()
        if not self.data_files:
            raise DatasetError("no data file is given: data.train_files and data.val_files name parquet files")
        tables = [_read_parquet(Path(file).expanduser(), self.prompt_key) for file in self.data_files]
        try:
            return pa.concat_tables(tables, promote_options="default")
        except pa.ArrowException as error:
            raise DatasetError(f"{self} cannot be joined to one dataset: {error}") from error

    def _sample(self, table: pa.Table, max_samples: int) -> pa.Table:
        """The first `max_samples` rows, or as many random ones if data.shuffle is on (as in verl)."""
        if not 0 < max_samples < table.num_rows:
            return table
        if not self._option("shuffle", False):
            return table.slice(0, max_samples)
        rng = np.random.default_rng(self._option("seed", None))
        return table.take(rng.choice(table.num_rows, size=max_samples, replace=False))

    def _limit_overlong(self, table: pa.Table) -> pa.Table:
        """Drop, refuse or let through the prompts over data.max_prompt_length: see the module docstring."""
        truncation = self._option("truncation", "error")
        if truncation not in TRUNCATIONS:
            raise DatasetError(f"data.truncation={truncation!r} is none of {', '.join(TRUNCATIONS)}")
        lengths = [self._prompt_length(row, prompt.as_py()) for row, prompt in enumerate(table.column(self.prompt_key))]
        overlong = [row for row, length in enumerate(lengths) if length > self.max_prompt_length]
        if not overlong:
            return table
        if self._option("filter_overlong_prompts", False):
            self.num_filtered = len(overlong)
            return table.filter([length <= self.max_prompt_length for length in lengths])
        found = (
            f"{len(overlong)} of {table.num_rows} prompts of {self} are longer than data.max_prompt_length="
            f"{self.max_prompt_length} tokens (the longest has {max(lengths)}, the first is row {overlong[0]})"
        )
        if truncation == "error":
            raise DatasetError(
                f"{found}; raise data.max_prompt_length, drop them with data.filter_overlong_prompts=true, or have the "
                "agent loop cut them with data.truncation=left"
            )
        warnings.warn(f"{found}; the agent loop will cut them (data.truncation={truncation})", stacklevel=4)
        return table

    def _prompt_length(self, row: int, messages: Any) -> int:
        """Tokens of a prompt under the chat template, generation prompt included."""
        if not isinstance(messages, list) or not all(isinstance(m, dict) and "role" in m for m in messages):
            raise DatasetError(
                f"row {row} of {self}: column {self.prompt_key!r} (data.prompt_key) must hold chat messages, a list of "
                f"{{role, content}}; it holds {type(messages).__name__} {str(messages)[:60]!r}"
            )
        try:
            text = self.tokenizer.apply_chat_template(
                messages, tools=self.tools, add_generation_prompt=True, **self._template_kwargs
            )
        except Exception as error:  # a template may raise anything, and the reader needs to know on which row
            raise DatasetError(f"the chat template fails on row {row} of {self}: {error}") from error
        return len(self.tokenizer(text, add_special_tokens=False)["input_ids"])


def _read_parquet(file: Path, prompt_key: str) -> pa.Table:
    """One file as a table that has the prompt column. Raises DatasetError."""
    pa, parquet = _pyarrow()
    if not file.is_file():
        raise DatasetError(f"there is no file {str(file)!r}; data.train_files and data.val_files name parquet files")
    try:
        table = parquet.read_table(file)
    except pa.ArrowException as error:
        raise DatasetError(f"{str(file)!r} is not a parquet file: {error}") from error
    if prompt_key not in table.column_names:
        raise DatasetError(
            f"{str(file)!r} has no column {prompt_key!r}; it has {', '.join(table.column_names)}. "
            "Set data.prompt_key to the column that holds the chat messages"
        )
    return table


def collate_fn(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A batch from dataset rows: tensors are stacked to [num_rows, ...], all else becomes a list of num_rows objects.

    Raises DatasetError if the rows do not all have the same columns.
    """
    columns = rows[0].keys()
    for number, row in enumerate(rows):
        if row.keys() != columns:
            raise DatasetError(f"row {number} of the batch differs from row 0 in {sorted(row.keys() ^ columns)}")
    batch = {column: [row[column] for row in rows] for column in columns}
    return {name: torch.stack(values) if torch.is_tensor(values[0]) else values for name, values in batch.items()}


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise DatasetError(f"reading parquet files needs pyarrow: pip install pyarrow ({error})") from error
    return pyarrow, pyarrow.parquet
