"""DataProto: one batch with all its columns, the thing that the serial pipeline hands from stage to stage.

verl 0.9.1: protocol.py, DataProto, pad_dataproto_to_divisor and unpad_dataproto.

    batch             TensorDict, every column [num_rows, ...]       prompts, responses, attention_mask, ...
    non_tensor_batch  {name: numpy object array [num_rows]}          uid, data_source, reward_model, ...
    meta_info         {name: value}, one for the whole batch         global_steps, validate, ...

Every stage gets the whole of it and sends the whole of it on: that is what the V1 trainer, which sends keys and leaves
the tensors in the queue, does without. A column is there for all rows or for none.

Changed in place: `union`, `pop`, `reorder`. Everything else gives a new DataProto that shares columns with
the old one. Differs: a wrong column is a DataProtoError that names it, where verl has assertions. Left out: automatic
padding, folding of batch dimensions, renaming, devices, futures, files, mini-batch iterators, and the conversion to
one TensorDict (padding.py makes the one that the workers take).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from kitlib.trainer.v0.columns import merge_meta_info, same
from kitlib.trainer.v0.errors import DataProtoError

Index = slice | Sequence[int] | Sequence[bool] | np.ndarray | Tensor


@dataclass
class DataProtoItem:
    """One row: what `data[3]` gives."""

    batch: TensorDict | None
    non_tensor_batch: dict[str, Any]
    meta_info: dict[str, Any]


@dataclass
class DataProto:
    """Columns of equal length and what holds for the whole batch."""

    batch: TensorDict | None = None
    non_tensor_batch: dict[str, np.ndarray] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.check_consistency()

    # Making one

    @classmethod
    def from_dict(
        cls,
        tensors: Mapping[str, Tensor] | None = None,
        non_tensors: Mapping[str, np.ndarray] | None = None,
        meta_info: Mapping[str, Any] | None = None,
    ) -> DataProto:
        """From columns; DataProtoError if the tensors differ in their number of rows."""
        tensors = dict(tensors or {})
        sizes = {name: len(column) for name, column in tensors.items()}
        if len(set(sizes.values())) > 1:
            raise DataProtoError(f"tensors of one batch need the same number of rows, got {sizes}")
        batch = TensorDict(tensors, batch_size=[next(iter(sizes.values()))]) if tensors else None
        return cls(batch, dict(non_tensors or {}), dict(meta_info or {}))

    @classmethod
    def from_single_dict(
        cls, data: Mapping[str, Tensor | np.ndarray], meta_info: Mapping[str, Any] | None = None
    ) -> DataProto:
        """From columns of both kinds: tensors go to `batch`, numpy arrays to `non_tensor_batch`."""
        odd = [name for name, column in data.items() if not isinstance(column, Tensor | np.ndarray)]
        if odd:
            raise DataProtoError(f"{odd[0]!r} is a {type(data[odd[0]]).__name__}: expected a tensor or a numpy array")
        tensors = {name: column for name, column in data.items() if isinstance(column, Tensor)}
        return cls.from_dict(
            tensors, {name: column for name, column in data.items() if isinstance(column, np.ndarray)}, meta_info
        )

    def check_consistency(self) -> None:
        """DataProtoError unless every column has as many rows as the batch."""
        if self.batch is not None and len(self.batch.batch_size) != 1:
            raise DataProtoError(f"batch has batch size {tuple(self.batch.batch_size)}: expected one dimension")
        for name, column in self.non_tensor_batch.items():
            if not isinstance(column, np.ndarray):
                raise DataProtoError(f"{name!r} is a {type(column).__name__}: use object_column(values)")
            if len(column) != len(self):
                raise DataProtoError(f"{name!r} has {len(column)} rows, the batch has {len(self)}")

    # Reading

    def __len__(self) -> int:
        if self.batch is not None:
            return self.batch.batch_size[0]
        return next((len(column) for column in self.non_tensor_batch.values()), 0)

    def __getitem__(self, item: int | Index) -> Any:
        """A row as DataProtoItem for a number; a DataProto for a slice, a list, an array or a mask."""
        if isinstance(item, int | np.integer):
            row = None if self.batch is None else self.batch[item]
            return DataProtoItem(row, {name: col[item] for name, col in self.non_tensor_batch.items()}, self.meta_info)
        return self.slice(item.start, item.stop, item.step) if isinstance(item, slice) else self.select_idxs(item)

    def __str__(self) -> str:
        """One line a column: name, shape, dtype."""
        lines = [f"DataProto of {len(self)} rows", "  batch"]
        for name, column in self.batch.items() if self.batch is not None else ():
            lines.append(f"    {name}  {str(column.dtype).removeprefix('torch.')} {list(column.shape)}")
        lines.append("  non_tensor_batch")
        lines += [f"    {name}  {col.dtype} {list(col.shape)}" for name, col in self.non_tensor_batch.items()]
        return "\n".join([*lines, "  meta_info", *(f"    {name}" for name in self.meta_info)])

    # Rows

    def slice(self, start: int | None = None, end: int | None = None, step: int | None = None) -> DataProto:
        """Rows start:end:step."""
        rows = slice(start, end, step)
        return self._with_rows(
            None if self.batch is None else self.batch[rows],
            {name: column[rows] for name, column in self.non_tensor_batch.items()},
        )

    def select_idxs(self, idxs: Sequence[int] | Sequence[bool] | np.ndarray | Tensor) -> DataProto:
        """Rows by number, in that order, or by mask."""
        index = np.asarray(idxs)
        return self._with_rows(
            None if self.batch is None else self.batch[torch.from_numpy(index)],
            {name: column[index] for name, column in self.non_tensor_batch.items()},
        )

    def reorder(self, indices: Tensor) -> None:
        """Put the rows in another order, in place."""
        moved = self.select_idxs(indices)
        self.batch, self.non_tensor_batch = moved.batch, moved.non_tensor_batch

    def repeat(self, repeat_times: int = 2, interleave: bool = True) -> DataProto:
        """Every row `repeat_times` times: a a b b if `interleave`, else a b a b."""
        index = np.arange(len(self))
        return self.select_idxs(np.repeat(index, repeat_times) if interleave else np.tile(index, repeat_times))

    def chunk(self, chunks: int) -> list[DataProto]:
        """Equal consecutive parts, one for each rank; meta_info goes to all. DataProtoError if they are not equal."""
        size, rest = divmod(len(self), chunks)
        if rest:
            raise DataProtoError(f"{len(self)} rows are no {chunks} equal chunks: use pad_dataproto_to_divisor before")
        return [self.slice(i * size, (i + 1) * size) for i in range(chunks)]

    @staticmethod
    def concat(data: Sequence[DataProto]) -> DataProto:
        """The rows of all, in order. meta_info is merged and must agree, except `metrics`: the workers' dictionaries
        become one dictionary of lists."""
        first = data[0]
        for part in data[1:]:
            if differing := sorted(_names(part) ^ _names(first)):
                raise DataProtoError(f"{differing[0]!r} is a column of some parts only, so they cannot be joined")
        objects = {n: np.concatenate([part.non_tensor_batch[n] for part in data]) for n in first.non_tensor_batch}
        batches = [part.batch for part in data if part.batch is not None]
        batch = TensorDict.cat(batches, dim=0) if batches else None
        return DataProto(batch, objects, merge_meta_info([part.meta_info for part in data]))

    # Columns

    def select(
        self,
        batch_keys: Iterable[str] | None = None,
        non_tensor_batch_keys: Iterable[str] | None = None,
        meta_info_keys: Iterable[str] | None = None,
    ) -> DataProto:
        """Some of the columns; None means all of that kind. An unknown name is an error for `batch`, else ignored."""
        batch = self.batch
        if batch_keys is not None and batch is not None:
            batch_keys = list(batch_keys)
            self._require(batch_keys, batch.keys(), "batch")
            batch = batch.select(*batch_keys)
        objects, constants = self.non_tensor_batch, self.meta_info
        if non_tensor_batch_keys is not None:
            objects = {name: objects[name] for name in non_tensor_batch_keys if name in objects}
        if meta_info_keys is not None:
            constants = {name: constants[name] for name in meta_info_keys if name in constants}
        return DataProto(batch, objects, constants)

    def pop(
        self,
        batch_keys: Iterable[str] = (),
        non_tensor_batch_keys: Iterable[str] = (),
        meta_info_keys: Iterable[str] = (),
    ) -> DataProto:
        """Take columns out, in place, and return them as a DataProto of their own."""
        tensors = self.batch if self.batch is not None else {}
        return DataProto.from_dict(
            self._take(batch_keys, tensors, "batch"),
            self._take(non_tensor_batch_keys, self.non_tensor_batch, "non_tensor_batch"),
            self._take(meta_info_keys, self.meta_info, "meta_info"),
        )

    def union(self, other: DataProto) -> DataProto:
        """Add the columns of `other`, in place. A column that both have must be equal in both; so must meta_info."""
        if len(other) and len(self) and len(other) != len(self):
            raise DataProtoError(f"union of {len(self)} and {len(other)} rows: repeat the shorter one before")
        mine = {} if self.batch is None else dict(self.batch.items())
        theirs = {} if other.batch is None else dict(other.batch.items())
        for own, given in (
            (mine, theirs),
            (self.non_tensor_batch, other.non_tensor_batch),
            (self.meta_info, other.meta_info),
        ):
            for name in own.keys() & given.keys():
                if not same(own[name], given[name]):
                    raise DataProtoError(f"union: both sides have {name!r} and it differs: drop it from one with pop")
        if self.batch is None:
            self.batch = other.batch
        else:
            self.batch.update({name: column for name, column in theirs.items() if name not in mine})
        self.non_tensor_batch = {**other.non_tensor_batch, **self.non_tensor_batch}
        self.meta_info = {**other.meta_info, **self.meta_info}
        self.check_consistency()
        return self

    def _with_rows(self, batch: TensorDict | None, objects: dict[str, np.ndarray]) -> DataProto:
        return DataProto(batch, objects, self.meta_info)

    def _take(self, names: Iterable[str], source: Any, where: str) -> dict[str, Any]:
        names = list(names)
        self._require(names, source.keys(), where)
        return {name: source.pop(name) for name in names}

    def _require(self, names: Sequence[str], known: Iterable[Any], where: str) -> None:
        known = set(known)
        if missing := [name for name in names if name not in known]:
            raise DataProtoError(
                f"{where} has no {missing[0]!r}; it has {', '.join(sorted(map(str, known))) or 'nothing'}"
            )


def pad_dataproto_to_divisor(data: DataProto, size_divisor: int) -> tuple[DataProto, int]:
    """Fill up with copies of the first rows until the number of rows divides; also how many rows that were."""
    pad_size = -len(data) % size_divisor
    if not pad_size:
        return data, 0
    if not len(data):
        raise DataProtoError("an empty DataProto has no row to pad with")
    return DataProto.concat([data, data.select_idxs(np.arange(pad_size) % len(data))]), pad_size


def unpad_dataproto(data: DataProto, pad_size: int) -> DataProto:
    """Without the rows that pad_dataproto_to_divisor added."""
    return data.slice(0, len(data) - pad_size) if pad_size else data


def _names(data: DataProto) -> set[str]:
    tensors = set() if data.batch is None else set(map(str, data.batch.keys()))
    return tensors | data.non_tensor_batch.keys()
