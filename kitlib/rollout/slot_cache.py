"""A key-value cache whose rows belong to requests of different lengths.

verl 0.9.1 has none of its own: vLLM keeps a paged cache. Here each request owns one row of a [num_rows, length,
heads, head_dim] tensor per layer, and the rows being decoded are the first ones, so that attention reads a plain
slice and nothing is gathered. The class is a transformers Cache: any model that calls `cache.update` in its attention
writes to the positions that `begin` announced, and gets the keys and values of its rows back, cut to the longest of
them. Which of them a row may attend to is the business of the attention mask. Left out: sliding windows, linear
attention, paging, sharing of a prefix between rows (a shared prompt is copied).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


class _Place:
    """Where the tokens of the forward in progress go. One object, shared by all layers."""

    def __init__(self) -> None:
        self.num_rows = 0  # rows allocated
        self.capacity = 0  # positions allocated in each row
        self.rows = slice(0, 0)  # rows of this forward
        self.kv_length = 0  # positions handed to attention
        self.is_fresh = False  # the forward writes whole rows, from position 0 on
        self.positions = torch.empty(0, 0, dtype=torch.int64)  # [rows of this forward, query_length] to write at
        self._write_index: dict[int, Tensor] = {}  # by number of heads, shared by the layers

    def begin(self, rows: slice, positions: Tensor, kv_length: int, is_fresh: bool) -> None:
        self.rows, self.positions, self.kv_length, self.is_fresh = rows, positions, kv_length, is_fresh
        self._write_index.clear()

    def write_index(self, num_heads: int) -> Tensor:
        """Where [row, head, query] goes in the [num_rows, num_heads, capacity] positions of a store, all flattened."""
        if num_heads not in self._write_index:
            device = self.positions.device
            rows = torch.arange(self.rows.start, self.rows.stop, device=device).view(-1, 1, 1)
            heads = torch.arange(num_heads, device=device).view(1, -1, 1)
            index = (rows * num_heads + heads) * self.capacity + self.positions.unsqueeze(1)
            self._write_index[num_heads] = index.flatten()
        return self._write_index[num_heads]


class SlotLayer(CacheLayerMixin):
    """Keys and values of one layer, [num_rows, num_kv_heads, capacity, head_dim], allocated on first use."""

    keys: Tensor
    values: Tensor

    def __init__(self, place: _Place) -> None:
        super().__init__()
        self.place = place
        self.keys = self.values = torch.empty(0)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write [rows, heads, query_length, head_dim] and return [rows, heads, kv_length, head_dim] views."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self._grow()
        return self._write(self.keys, key_states), self._write(self.values, value_states)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys = key_states.new_empty(0, key_states.shape[1], 0, key_states.shape[3])
        self.values = value_states.new_empty(0, value_states.shape[1], 0, value_states.shape[3])
        self.is_initialized = True

    def copy_rows(self, source: Tensor, target: Tensor, length: int) -> None:
        """See SlotCache.copy_rows."""
        self._grow()
        for store in (self.keys, self.values):
            store[target, :, :length] = store[source, :, :length]

    def _write(self, store: Tensor, states: Tensor) -> Tensor:
        place, head_dim = self.place, store.shape[3]
        store.view(-1, head_dim).index_copy_(0, place.write_index(store.shape[1]), states.reshape(-1, head_dim))
        return states if place.is_fresh else store[place.rows, :, : place.kv_length]

    def _grow(self) -> None:
        if self.keys.shape[0] != self.place.num_rows or self.keys.shape[2] != self.place.capacity:
            self.keys, self.values = self._grown(self.keys), self._grown(self.values)

    def _grown(self, store: Tensor) -> Tensor:
        # zeros, not empty: masked positions are multiplied by 0, and 0 * NaN would reach the output
        num_rows, num_heads, capacity, head_dim = store.shape
        grown = store.new_zeros(self.place.num_rows, num_heads, self.place.capacity, head_dim)
        grown[:num_rows, :, :capacity] = store
        return grown

    # What a model asks when it is given no mask, that is in a fresh forward. Else masks and positions are explicit.
    def get_seq_length(self, *args: Any) -> int:
        return 0 if self.place.is_fresh else self.place.kv_length

    def get_mask_sizes(self, *args: Any) -> tuple[int, int]:
        return self.place.kv_length, 0

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length  # the name before transformers 5.20 or so


class SlotCache(Cache):
    """The cache of one server. `begin`, then the model's forward; `move_rows` between forwards."""

    layers: list[SlotLayer]  # type: ignore[assignment]

    def __init__(self, max_num_rows: int, max_length: int) -> None:
        self.place = _Place()
        self.max_num_rows, self.max_length = max_num_rows, max_length
        super().__init__(layer_class_to_replicate=lambda: SlotLayer(self.place))  # type: ignore[arg-type]

    def reserve(self, num_rows: int, length: int) -> None:
        """Make room for `num_rows` rows of `length` positions; grows by doubling up to the limits, keeps what is
        stored."""
        place = self.place
        if num_rows > place.num_rows:
            place.num_rows = max(num_rows, min(2 * place.num_rows, self.max_num_rows))
        if length > place.capacity:
            place.capacity = max(length, min(max(2 * place.capacity, 32), self.max_length))

    def begin(self, rows: slice, positions: Tensor, kv_length: int, is_fresh: bool = False) -> None:
        """Announce a forward: row i of the batch is row `rows.start + i`, its tokens go to `positions` [num_rows,
        query_length].

        All positions of a row must differ. `kv_length` is the number of positions attention will see. `is_fresh`
        promises that every row is written from position 0 to kv_length, so that a plain causal mask is right.
        """
        self.place.begin(rows, positions, kv_length, is_fresh)

    def copy_rows(self, source: Tensor, target: Tensor, length: int) -> None:
        """Row target[i] becomes row source[i], up to position `length`; sources are read before targets are written."""
        for layer in self.layers:
            layer.copy_rows(source, target, length)

    def free(self) -> None:
        """Give the memory back."""
        self.layers.clear()
        self.place.num_rows = self.place.capacity = 0
