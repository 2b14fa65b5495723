"""Tiny checkpoints made from a seed: Hugging Face folders and GGUF files with the same weights.

Every value is representable in the stored type, so a file in BF16 and the arrays here hold the same numbers. Spread is
wide (std 0.3) and norm weights are away from 1: at the usual std of 0.02 a lost scale or bias hides in rounding.
"""
from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors import TensorSpec, serialize_file

Config = dict[str, Any]
Shape = tuple[int, ...]
Arrays = dict[str, np.ndarray]
NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64", "I64": "int64", "U8": "uint8"}
SHARD_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Case:
    """One tiny checkpoint and the prompts it is run with.

    `shapes` lists the family's tensors from a config. `extra` adds tensors. `norms` stores one-dimensional weights in
    another type than `dtype`. `lengths` are of the prompts. `by_length` says that logits of a position depend on how
    many tokens follow in the same call, as for dynamic rope.
    """

    name: str
    config: Config
    shapes: Callable[[Config], dict[str, Shape]]
    dtype: str = "F32"
    norms: str = ""
    shards: int = 1
    extra: Mapping[str, Shape] = field(default_factory=dict)
    lengths: tuple[int, ...] = (12, 100)
    by_length: bool = False
    seed: int = 0

    def but(self, **changes: Any) -> Case:
        """The case with some of its data replaced."""
        return replace(self, **changes)

    def set(self, name: str, **keys: Any) -> Case:
        """The case under another name with config keys replaced; `...` (Ellipsis) removes one."""
        merged = {**self.config, **keys}
        return replace(self, name=name, config={k: v for k, v in merged.items() if v is not ...})

    def stored_as(self, name: str) -> str:
        """The element type of a tensor in the file."""
        return self.norms if self.norms and name.endswith("norm.weight") else self.dtype

    def tensors(self) -> Arrays:
        """Every tensor's values as f32, by name; a tensor's values depend on its name and shape only."""
        shapes = {**self.shapes(self.config), **self.extra}
        return {n: rounded(values(n, s, self.seed), self.stored_as(n)) for n, s in shapes.items()}

    def prompts(self) -> list[list[int]]:
        """Token ids, one list per length."""
        return [prompt(n, self.config["vocab_size"], self.seed) for n in self.lengths]


def prompt(length: int, vocab: int, seed: int = 0) -> list[int]:
    """Ids 3 and above, so that no special id is among them."""
    return np.random.RandomState(seed + length).randint(3, vocab, length).tolist()


def values(name: str, shape: Shape, seed: int) -> np.ndarray:
    """Normal values of std 0.3 around 0, around 1 for norm weights; from RandomState, whose stream never changes."""
    rng = np.random.RandomState(zlib.crc32(name.encode()) ^ seed)
    drawn = rng.standard_normal(shape) * 0.3
    return (drawn + 1 if len(shape) == 1 and name.endswith("weight") else drawn).astype(np.float32)


def rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    """f32 values that `dtype` holds exactly."""
    if dtype == "BF16":
        return (bf16_bits(x).astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float16).astype(np.float32) if dtype == "F16" else x


def bf16_bits(x: np.ndarray) -> np.ndarray:
    """The nearest BF16 patterns, ties to even; finite values only."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def raw(x: np.ndarray, dtype: str) -> np.ndarray:
    """The array whose bytes the file holds."""
    kinds = {"F32": np.float32, "F16": np.float16, "F64": np.float64, "I64": np.int64, "U8": np.uint8}
    return bf16_bits(x) if dtype == "BF16" else np.ascontiguousarray(x, kinds[dtype])


def write_folder(path: Path, case: Case, tensors: Arrays | None = None) -> Path:
    """The case as a model folder; `tensors` replaces its own."""
    path.mkdir(parents=True, exist_ok=True)
    write_config(path, case.config)
    arrays = case.tensors() if tensors is None else tensors
    write_weights(path, {n: (case.stored_as(n), x) for n, x in arrays.items()}, case.shards)
    return path


def write_config(path: Path, config: Config) -> None:
    """Only config.json; NaN is written as Python's json does."""
    (path / "config.json").write_text(json.dumps(config, indent=1))


def write_weights(path: Path, tensors: Mapping[str, tuple[str, np.ndarray]], shards: int = 1) -> None:
    """One model.safetensors, or shards of about as many tensors each and their index."""
    names = list(tensors)
    if shards == 1:
        _file(path / "model.safetensors", names, tensors)
        return
    size = -(-len(names) // shards)
    placed = {n: f"model-{i // size + 1:05}-of-{shards:05}.safetensors" for i, n in enumerate(names)}
    for file in dict.fromkeys(placed.values()):
        _file(path / file, [n for n in names if placed[n] == file], tensors)
    (path / SHARD_INDEX).write_text(json.dumps({"metadata": {}, "weight_map": placed}))


def _file(path: Path, names: Iterable[str], tensors: Mapping[str, tuple[str, np.ndarray]]) -> None:
    kept, specs = [], {}
    for n in names:
        dtype, x = tensors[n]
        kept.append(raw(x, dtype))
        specs[n] = TensorSpec(dtype=NAMES[dtype], shape=list(x.shape), data_ptr=kept[-1].ctypes.data, data_len=kept[-1].nbytes)
    serialize_file(specs, path, {"format": "pt"})


def write_gguf(path: Path, arch: str, metadata: Mapping[str, Any], tensors: Arrays, *, alignment: int = 32,
               parts: int = 1) -> Path:
    """A GGUF file in F32, or `parts` of about as many tensors each; the values' Python types choose u32, f32, string and so
    on, as llama.cpp's converter does. Returns the file, or the first part."""
    writer = gguf.GGUFWriter(path, arch, split_max_tensors=-(-len(tensors) // parts) if parts > 1 else 0)
    if alignment != 32:
        writer.add_custom_alignment(alignment)
    for key, value in metadata.items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, bool: writer.add_bool,
               list: writer.add_array}[type(value)]
        add(key if key.startswith(("general.", "tokenizer.")) else f"{arch}.{key}", value)
    for name, x in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(x, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if parts == 1 else path.with_name(f"{path.stem}-00001-of-{parts:05}{path.suffix}")


def interleaved_rows(x: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's converter for q and k of rotate-half models: row i and row i+d/2 of a head become neighbours."""
    halves = x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:])
    return halves.swapaxes(1, 2).reshape(x.shape)
