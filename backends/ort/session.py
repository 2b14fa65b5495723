"""An artifact opened in onnxruntime: token ids in, float32 logits out, keys and values kept in a cache.

What onnxruntime 1.32 does with GroupQueryAttention on the CPU, measured on a two-layer graph and proved by the tests:
- a row's keys go to slots 0.. of its own buffer; its past length is the mask's sum minus the new tokens, so rows of
  different length decode together exactly (the mask is then 1 in the row's first `length` places);
- a right-padded prefill into an empty cache gives each row the logits of its single run, bit for bit;
- a **left-padded** mask gives wrong logits without any error, so this module never makes one and refuses one;
- more than one new token on top of a past is refused for a batch above 1: prefill goes row by row.
"""
from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from uaii.backends.ort import device as devices
from uaii.backends.ort.cache import Cache, GrowingCache, SharedCache
from uaii.backends.ort.graph import KEEP, LENGTH, START, layout, load, out_of_memory
from uaii.backends.ort.manifest import GRAPH, Manifest, read_manifest
from uaii.ir.diag import Diagnostic, Internal, Malformed, Unsupported, Usage
from uaii.ir.loc import File

Ids = npt.NDArray[np.int64]
Logits = npt.NDArray[np.float32]
CHUNK = 512          # prompt tokens per run
SCORES = 512 * 8192  # chunk x length at which chunks shrink: kernels without tiling hold that many scores per head


class Session:
    """A loaded artifact. Steps of different caches may run in different threads at once."""

    def __init__(self, folder: Path, manifest: Manifest, session: onnxruntime.InferenceSession, context: int,
                 load_seconds: float) -> None:
        self.folder, self.manifest, self.context_length, self.load_seconds = folder, manifest, context, load_seconds
        self.vocab_size, self.stop_ids = manifest.vocab_size, manifest.stop_ids
        self.provider: str = session.get_providers()[0]
        self._session, self._layout = session, layout(session, manifest)

    @classmethod
    def open(cls, folder: str | Path, *, threads: int | None = None, device: str = "auto", context: int | None = None,
             hashes: bool = False) -> Session:
        """Check and load an artifact folder (or the model.onnx in it); nothing is written.

        `threads` defaults to the physical cores this process may use. `device` is cpu, cuda or auto: an explicit cuda
        that cannot be used is an error, auto falls back; `provider` is what is really in use. `context` limits the
        length in tokens below the model's. `hashes` also compares the files' sha256.
        Raises Malformed (S601, S603, S604, S607), Unsupported (S602, S605, S606, S617), Usage (S610).
        """
        start = time.perf_counter()
        root = Path(folder)
        root = root.parent if root.name == GRAPH and root.is_file() else root
        manifest = read_manifest(root, hashes=hashes)
        limit = manifest.context_length if context is None else context
        if type(limit) is not int or not 0 < limit <= manifest.context_length:
            raise Usage("S610", f"a context of {limit!r} tokens: the model's limit is {manifest.context_length}")
        wanted = devices.candidates(device, manifest.target)
        session = load(root, manifest.files, devices.options(threads), wanted)
        if device == "cuda" and session.get_providers()[0] != devices.CUDA:
            raise devices.no_cuda("onnxruntime could not start its CUDA provider")
        return cls(root, manifest, session, limit, time.perf_counter() - start)

    def cache(self, batch: int = 1, capacity: int | None = None) -> Cache:
        """An empty cache of `batch` rows, with room for `capacity` tokens each before it first grows."""
        slots = self._layout.slots
        if not self.manifest.kv_in_place:
            return GrowingCache(slots, batch, self.context_length)
        where = "cuda" if self.provider == devices.CUDA else "cpu"
        return SharedCache(slots, batch, self.context_length, where, capacity)

    def checked(self, ids: Sequence[int] | npt.NDArray[Any]) -> Ids:
        """Token ids as int64, each with a row in the embedding. Raises Usage S611 that names the first bad one."""
        try:
            array = np.asarray(ids)
        except ValueError:
            raise Usage("S611", "token ids of one step must have one length", hint="pad, or run row by row") from None
        if array.dtype.kind not in "iu" and array.size:
            raise Usage("S611", f"token ids must be whole numbers, not {array.dtype}")
        if array.size and not (array.min() >= 0 and array.max() < self.vocab_size):
            at = tuple(int(i) for i in np.argwhere((array < 0) | (array >= self.vocab_size))[0])
            raise Usage("S611", f"token id {array[at]} at position {at[-1]} is outside the vocabulary of "
                        f"{self.vocab_size}", why="the embedding has no row for it; a negative id would read another")
        return array.astype(np.int64)

    def step(self, ids: Ids, mask: Ids | None, cache: Cache, keep_logits: int = 1, row: int | None = None) -> Logits:
        """Run new tokens [B,S] after what the cache holds and return the last `keep_logits` logits, float32 [B,k,V].

        `keep_logits` 0 returns all S. `mask` [B,T], T = longest length after the step, is 1 where a row has a token:
        ones then zeros; None means that every new token is real. `row` runs one row of the cache (B = 1). A row that grows
        beyond the manifest's `rope_switch` is run again whole, once, for its cached keys are rotated otherwise.
        Raises Usage S611 (ids), S612 (past the context), S614 (a padding that the kernel would get wrong), Malformed
        S615 (NaN or infinite logits), Internal S616 (onnxruntime failed), Unsupported S617 (memory).
        """
        ids = self.checked(ids)
        past = np.array(cache.lengths if row is None else [cache.lengths[row]], np.int64)
        if ids.ndim != 2 or ids.shape[0] != past.size or not ids.shape[1] or keep_logits < 0:
            raise Usage("S614", f"ids of shape {list(ids.shape)} for {past.size} row(s) of the cache")
        count = ids.shape[1]
        total = past + count if mask is None else _lengths(mask, past, count)
        if count > 1 and past.size > 1 and past.any():
            raise Usage("S614", "several new tokens after a past go one row at a time",
                        why="GroupQueryAttention refuses a batch there", hint="pass row=...")
        longest = int(total.max())
        if longest > self.context_length:
            raise Usage("S612", f"{longest} tokens do not fit the context of {self.context_length}")
        rows = list(range(cache.batch)) if row is None else [row]
        if not all(self.continues(cache, int(n), r) for n, r in zip(total, rows, strict=True)):
            parts = zip(ids, total - past, rows, strict=True)
            return np.stack([self.prefill(line[:n], cache, row=r, keep_logits=keep_logits) for line, n, r in parts])
        return self._step(ids, total, cache, keep_logits, row, longest if len(rows) == 1 else 0)

    def continues(self, cache: Cache, total: int, row: int = 0) -> bool:
        """Whether the keys that the cache's row holds serve a text of `total` tokens; `step` and `prefill` run the row again
        whole where they do not. transformers' generate drops the cache there too (modeling_phi3.py)."""
        switch = self.manifest.rope_switch
        return switch is None or not cache.lengths[row] or cache.far[row] == (total > switch)

    def _step(self, ids: Ids, total: Ids, cache: Cache, keep: int, row: int | None, length: int) -> Logits:
        """One run to row lengths `total`; `length` is what the text comes to when this is a part of it, 0 if unknown."""
        longest = int(total.max())
        cache.reserve(longest)
        binding = cache.binding(self._session, row)
        full = (np.arange(longest) < total[:, None]).astype(np.int64)
        logits = self._run(binding, ids, full, keep, length, cache.start(row))
        rows = list(range(cache.batch)) if row is None else [row]
        fresh = [int(n) - cache.lengths[r] for n, r in zip(total, rows, strict=True)]
        cache.advance(binding, row, [line[:n].tolist() for line, n in zip(ids, fresh, strict=True)])
        for n, r in zip(total, rows, strict=True):
            cache.far[r] = self.manifest.rope_switch is not None and max(int(n), length) > self.manifest.rope_switch
        return logits

    def _run(self, binding: onnxruntime.IOBinding, ids: Ids, mask: Ids, keep: int, length: int, start: int) -> Logits:
        count = ids.shape[1]
        kept = keep if 0 < keep < count else count
        made = kept if self._layout.keeps else count
        out = np.empty((ids.shape[0], made, self.vocab_size), self._layout.logits)
        # onnxruntime borrows the arrays: they must live until the run is over
        scalars = [np.array(x, np.int64) for x in (kept, length, start)]
        value = onnxruntime.OrtValue.ortvalue_from_numpy
        binding.bind_ortvalue_input("input_ids", value(ids))
        binding.bind_ortvalue_input("attention_mask", value(mask))
        if self._layout.keeps:
            binding.bind_ortvalue_input(KEEP, value(scalars[0]))
        if self._layout.told:
            binding.bind_ortvalue_input(LENGTH, value(scalars[1]))
        if self._layout.starts:
            binding.bind_ortvalue_input(START, value(scalars[2]))
        binding.bind_ortvalue_output("logits", value(out))
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:  # onnxruntime's errors share no base class below Exception
            raise self._failed(error) from None
        if not np.isfinite(out.sum()) and not np.isfinite(out).all():  # the sum is one pass, and finite but for huge logits
            raise Malformed("S615", "the model's logits hold NaN or infinity", File(str(self.folder / GRAPH)),
                            why="no token can be chosen from them; usually a value left the range of its number format",
                            hint="compile with f32 weights; if that fails too, the checkpoint itself is broken")
        return out[:, made - kept:].astype(np.float32, copy=False)

    def _failed(self, error: Exception) -> Diagnostic:
        says = " ".join(str(error).split())
        where = File(str(self.folder / GRAPH))
        if isinstance(error, MemoryError) or out_of_memory(says):
            return Unsupported("S617", "onnxruntime ran out of memory in a step", where, notes=[says],
                               hint="use a shorter context, a smaller batch or a machine with more memory")
        return Internal("S616", "onnxruntime failed in a step", where, notes=[says],
                        hint="please report this with the command and the artifact's uaii.json")

    def prefill(self, ids: Sequence[int] | Ids, cache: Cache, *, row: int | None = None,
                keep_logits: int = 1) -> Logits:
        """Run a prompt [S] in chunks after what the cache's row holds; the last `keep_logits` logits [k,V], all [S,V] for 0.

        The chunk is 512 tokens and shrinks past 8192 tokens of context, so that the
        attention scores of one run stay bounded; results do not depend on it (a manifest's `whole_prompt` says where they
        would, and the prompt is one chunk). Errors as `step`.
        """
        line, at = self.checked(ids), row or 0
        kept = min(keep_logits, len(line)) or len(line)
        total = cache.lengths[at] + len(line)
        if total > self.context_length:
            raise Usage("S612", f"{total} tokens do not fit the context of {self.context_length}")
        if not self.continues(cache, total, at):
            line = np.array([*cache.ids[at], *line], np.int64)
            cache.rewind(0, at)
        cache.reserve(total)
        parts: list[Logits] = []
        while len(line):
            held = cache.lengths[at]
            size = max(64, min(CHUNK, SCORES // (held + CHUNK)))
            part, line = np.split(line, [len(line) if self.manifest.whole_prompt else size])
            wanted = min(kept - len(line), len(part))
            logits = self._step(part[None], np.array([held + len(part)]), cache, max(wanted, 1), row, total)[0]
            parts += [logits] if wanted > 0 else []
        return np.concatenate(parts)

    def logits(self, ids: Sequence[int] | Ids) -> Logits:
        """Logits of every position of a prompt, float32 [S,V], from an empty cache. Raises as `step`, Usage S613."""
        if not len(ids):
            raise no_prompt()
        return self.prefill(ids, self.cache(), keep_logits=0)


def no_prompt() -> Usage:
    """The refusal of a prompt without tokens."""
    return Usage("S613", "the prompt has no tokens", why="a model continues something; it has no first token by itself",
                 hint="give a prompt, or the id of the model's BOS token")


def _lengths(mask: Ids, past: Ids, count: int) -> Ids:
    """Row lengths after the step from a mask [B,T]; Usage S614 for anything but right padding of the new tokens."""
    mask = np.asarray(mask)
    total: Ids = mask.sum(axis=1).astype(np.int64) if mask.ndim == 2 else np.zeros(0, np.int64)
    if total.size != past.size or not np.array_equal(mask, np.arange(mask.shape[1]) < total[:, None]):
        raise Usage("S614", "the attention mask must be ones, then zeros, in each row",
                    why="GroupQueryAttention counts a row's tokens from the left: left padding is wrong silently",
                    hint="pad on the right")
    new = total - past
    if (new < 1).any() or new.max() != count:
        raise Usage("S614", f"the attention mask adds {new.tolist()} tokens, the ids have {count} per row")
    return total
