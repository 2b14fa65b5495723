"""Writes safetensors files and folders byte by byte, wrong ones too."""
from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path


def st_bytes(header: Mapping[str, object] | str | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    """A file with this header (an object, or its text); `length` makes the length field lie."""
    text = header if isinstance(header, bytes) else header.encode() if isinstance(header,
                                                                                  str) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, object]:
    """One tensor of a header."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def f32_file(path: Path, *names: str) -> None:
    """A file with one f32[2] tensor per name, the i-th holding i and -i."""
    header = {name: entry("F32", [2], 8 * i, 8 * i + 8) for i, name in enumerate(names)}
    path.write_bytes(st_bytes(header, b"".join(struct.pack("<ff", i, -i) for i in range(len(names)))))


def folder(path: Path, config: Mapping[str, object] | None = None, *,
           shards: Mapping[str, list[str]] | None = None) -> Path:
    """A model folder: config.json and either model.safetensors with one tensor `w` or the shards with an index."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config if config is not None else {"model_type": "llama"}))
    if shards is None:
        f32_file(path / "model.safetensors", "w")
        return path
    for name, tensors in shards.items():
        f32_file(path / name, *tensors)
    placed = {tensor: name for name, tensors in shards.items() for tensor in tensors}
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))
    return path
