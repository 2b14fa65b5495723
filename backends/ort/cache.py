"""Keys and values of past tokens: one buffer per layer that grows by doubling, or past values that are fed back."""
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime

from uaii.ir.diag import Unsupported, Usage

START = 256  # first capacity in tokens: small beside any weights, and enough for most short prompts
STRIDE = 64  # tokens by which layers with a window move on: so many are visited in vain at most, and it is bound again that often


@dataclass(frozen=True)
class Slot:
    """One cached tensor of the graph: its input and output names, element type and [_, heads, _, width].

    `also` are the names of another input and output that hold the same values, so that one buffer serves both. `window` is the
    number of tokens that its layer attends, 0 for all: keys before them need not be handed over.
    """

    past: str
    present: str
    dtype: np.dtype[Any]
    heads: int
    width: int
    also: tuple[str, str] | None = None
    window: int = 0


class Cache(ABC):
    """The state of `batch` sequences: per row the token ids that the keys and values stand for.

    `ids[row]` is the row's history; only tokens in it are ever attended. `far[row]` says that its keys are rotated for a text
    beyond the manifest's `rope_switch`. Not to be shared by two threads at a time;
    caches of one session are independent. `limit` is the longest length in tokens.
    """

    def __init__(self, slots: Sequence[Slot], batch: int, limit: int) -> None:
        if type(batch) is not int or batch < 1:
            raise Usage("S610", f"a cache needs at least one row, not {batch!r}")
        self.slots, self.limit = tuple(slots), limit
        self.ids: list[list[int]] = [[] for _ in range(batch)]
        self.far = [False] * batch

    @property
    def batch(self) -> int:
        """Rows."""
        return len(self.ids)

    @property
    def lengths(self) -> list[int]:
        """Tokens held per row."""
        return [len(row) for row in self.ids]

    @property
    @abstractmethod
    def capacity(self) -> int:
        """Tokens per row that fit without growing."""

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers as they are now."""
        per_token = sum(slot.heads * slot.width * slot.dtype.itemsize for slot in self.slots)
        return per_token * self.batch * self.capacity

    def rewind(self, length: int, row: int = 0) -> None:
        """Forget a row's tokens from `length` on. Raises Usage S610 when it holds fewer."""
        if not 0 <= length <= len(self.ids[row]):
            raise Usage("S610", f"cannot rewind to {length} tokens: the cache holds {len(self.ids[row])}")
        del self.ids[row][length:]

    def reuse(self, prompt: Sequence[int], row: int = 0) -> int:
        """Keep the longest prefix shared with `prompt`, short of its last token, and return that prefix's length."""
        held = self.ids[row]
        longest = min(len(held), len(prompt) - 1)
        same = next((i for i in range(longest) if held[i] != prompt[i]), longest)
        self.rewind(max(same, 0), row)
        return len(self.ids[row])

    def start(self, row: int | None) -> int:
        """The key at which `binding` begins in layers with a window: what the next token of the shortest row needs, rounded
        down."""
        return 0

    @abstractmethod
    def binding(self, session: onnxruntime.InferenceSession, row: int | None) -> onnxruntime.IOBinding:
        """A binding with the keys and values of one row (None: of all rows) attached."""

    def advance(self, binding: onnxruntime.IOBinding, row: int | None, fresh: Sequence[Sequence[int]]) -> None:
        """Record the tokens that a successful run has added."""
        for held, new in zip(self.ids if row is None else [self.ids[row]], fresh, strict=True):
            held.extend(new)

    @abstractmethod
    def reserve(self, length: int) -> None:
        """Make room for `length` tokens per row. Raises Unsupported S617 when memory is short."""


class SharedCache(Cache):
    """Past and present of a layer in one buffer [batch, heads, capacity, width] that the kernel writes in place.

    A row takes slots 0, 1, ... whatever the other rows' lengths; slots at and past its length hold nothing. Growing
    doubles the capacity up to `limit`, one buffer at a time, so the peak is the new size plus one buffer.

    All keys are kept, so that a row can be rewound. A layer with a window is handed its buffer from a later token on: under
    the same shape each head then begins at that token, as heads stand one capacity apart. No kernel visits what the shape
    claims beyond the last head; an untouched row is there all the same.
    """

    def __init__(self, slots: Sequence[Slot], batch: int, limit: int, device: str, capacity: int | None) -> None:
        super().__init__(slots, batch, limit)
        if capacity is not None and (type(capacity) is not int or not 0 < capacity <= limit):
            raise Usage("S610", f"the cache's capacity must lie in 1..{limit} tokens, not {capacity!r}")
        self.device = device
        self.bound: tuple[int | None, int, onnxruntime.IOBinding] | None = None
        self._capacity = min(limit, START) if capacity is None else capacity
        self.buffers = self._grown([], self._capacity)

    @property
    def capacity(self) -> int:
        """Tokens per row that fit without growing."""
        return self._capacity

    def reserve(self, length: int) -> None:
        """Make room for `length` tokens per row, at least doubling."""
        if length <= self.capacity:
            return
        size = self._capacity
        while size < length:
            size *= 2
        size = min(size, self.limit)
        self.bound = None
        self.buffers = self._grown(self.buffers, size)
        self._capacity = size  # last: a growth that was interrupted leaves some buffers larger, none smaller

    def keep(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order; the others' memory is given back."""
        self.bound = None
        for i, buffer in enumerate(self.buffers):
            array = _zeros(self.slots[i], len(rows), buffer.shape()[2])
            array[:len(rows)] = buffer.numpy()[list(rows)]
            self.buffers[i] = self._value(array)
        self.ids, self.far = [self.ids[row] for row in rows], [self.far[row] for row in rows]

    def start(self, row: int | None) -> int:
        """The key at which `binding` begins in layers with a window: what the next token of the shortest row needs, rounded
        down."""
        window = max(slot.window for slot in self.slots)
        shortest = min(self.lengths) if row is None else self.lengths[row]
        return max(shortest + 1 - window, 0) // STRIDE * STRIDE if window else 0

    def binding(self, session: onnxruntime.InferenceSession, row: int | None) -> onnxruntime.IOBinding:
        """A binding with the keys and values of one row (None: of all rows); kept until the buffers move, or `start`."""
        first = self.start(row)
        if self.bound is not None and self.bound[:2] == (row, first):
            return self.bound[2]
        binding = session.io_binding()
        for slot, buffer in zip(self.slots, self.buffers, strict=True):
            _, heads, capacity, width = buffer.shape()
            shape = [self.batch if row is None else 1, heads, capacity, width]
            skipped = (row or 0) * heads * capacity + (first if slot.window else 0)
            at = buffer.data_ptr() + skipped * width * slot.dtype.itemsize
            for past, present in ((slot.past, slot.present), *((slot.also,) if slot.also else ())):
                binding.bind_input(past, self.device, 0, slot.dtype.type, shape, at)
                binding.bind_output(present, self.device, 0, slot.dtype.type, shape, at)
        self.bound = row, first, binding
        return binding

    def _grown(self, old: list[onnxruntime.OrtValue], capacity: int) -> list[onnxruntime.OrtValue]:
        used = max(self.lengths)
        buffers = old or [None] * len(self.slots)
        try:
            for i, slot in enumerate(self.slots):
                array = _zeros(slot, self.batch, capacity)
                if buffers[i] is not None:
                    array[:self.batch, :, :used] = buffers[i].numpy()[:self.batch, :, :used]
                buffers[i] = self._value(array)
        except MemoryError:
            raise Unsupported("S617", f"not enough memory for a cache of {self.batch} x {capacity} tokens",
                              hint="use a shorter context, a smaller batch or a machine with more memory") from None
        return buffers

    def _value(self, array: np.ndarray[Any, Any]) -> onnxruntime.OrtValue:
        return onnxruntime.OrtValue.ortvalue_from_numpy(array, self.device, 0)


def _zeros(slot: Slot, batch: int, capacity: int) -> np.ndarray[Any, Any]:
    """A slot's array; with a window one row more, for what a shape claims beyond the last head. Untouched, it takes no memory."""
    return np.zeros((batch + bool(slot.window), slot.heads, capacity, slot.width), slot.dtype)


class GrowingCache(Cache):
    """One sequence whose graph returns past and new together: present of one step is past of the next."""

    def __init__(self, slots: Sequence[Slot], batch: int, limit: int) -> None:
        super().__init__(slots, batch, limit)
        if batch != 1:
            raise Usage("S610", "this artifact's cache holds one sequence", why="its graph grows past by concatenation",
                        hint="use one cache per sequence")
        self.values = [onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros((1, s.heads, 0, s.width), s.dtype))
                       for s in self.slots]

    @property
    def capacity(self) -> int:
        """Tokens held; the graph allocates each step's."""
        return len(self.ids[0])

    def reserve(self, length: int) -> None:
        """Nothing to do: each run allocates what it returns."""

    def binding(self, session: onnxruntime.InferenceSession, row: int | None) -> onnxruntime.IOBinding:
        """A fresh binding: past as held, cut to the row's length; present allocated by the run."""
        binding = session.io_binding()
        for i, slot in enumerate(self.slots):
            if self.values[i].shape()[2] != len(self.ids[0]):
                short = np.ascontiguousarray(self.values[i].numpy()[:, :, :len(self.ids[0])])
                self.values[i] = onnxruntime.OrtValue.ortvalue_from_numpy(short)
            binding.bind_ortvalue_input(slot.past, self.values[i])
            binding.bind_output(slot.present, "cpu")
        return binding

    def advance(self, binding: onnxruntime.IOBinding, row: int | None, fresh: Sequence[Sequence[int]]) -> None:
        """Take the run's present as the next past and record its tokens."""
        self.values = list(binding.get_outputs())[:len(self.slots)]
        super().advance(binding, row, fresh)
