"""Writes GGUF files byte by byte, wrong ones too: independent of the reader and of the gguf package."""
from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

TYPES = {"u8": (0, "<B"), "i8": (1, "<b"), "u16": (2, "<H"), "i16": (3, "<h"), "u32": (4, "<I"), "i32": (5, "<i"),
         "f32": (6, "<f"), "bool": (7, "<B"), "u64": (10, "<Q"), "i64": (11, "<q"), "f64": (12, "<d")}


@dataclass(frozen=True)
class Raw:
    """A tensor as it will be written: `dims` innermost first; `offset` None means the next aligned place."""

    name: str | bytes
    dims: Sequence[int]
    type: int
    data: bytes
    offset: int | None = None
    rank: int | None = None


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def pair(key: str | bytes, kind: str, value: object) -> bytes:
    """One key-value pair; kind is u32, str, arr[str] ... or raw, whose value is the type number and the payload."""
    if kind == "raw":
        return string(key) + value
    if kind == "str":
        return string(key) + struct.pack("<I", 8) + string(value)
    if kind == "arr[str]":
        return string(key) + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(string, value))
    if kind.startswith("arr["):
        number, form = TYPES[kind[4:-1]]
        return string(key) + struct.pack("<IIQ", 9, number, len(value)) + b"".join(struct.pack(form, v) for v in value)
    number, form = TYPES[kind]
    return string(key) + struct.pack("<I", number) + struct.pack(form, value)


def gguf_bytes(pairs: Iterable[tuple[str | bytes, str, object]] = (), tensors: Iterable[Raw] = (), *, version: int = 3,
               align: int = 32, n_pairs: int | None = None, n_tensors: int | None = None) -> bytes:
    """A whole file; the counts can be made to lie."""
    pairs, tensors = list(pairs), list(tensors)
    head = b"GGUF" + struct.pack("<Iqq", version, len(tensors) if n_tensors is None else n_tensors,
                                 len(pairs) if n_pairs is None else n_pairs)
    head += b"".join(pair(*p) for p in pairs)
    data = b""
    for tensor in tensors:
        offset = -(-len(data) // align) * align if tensor.offset is None else tensor.offset
        head += string(tensor.name) + struct.pack("<I", len(tensor.dims) if tensor.rank is None else tensor.rank)
        head += b"".join(struct.pack("<q", d) for d in tensor.dims) + struct.pack("<IQ", tensor.type, offset)
        data = data.ljust(offset, b"\0")[:offset] + tensor.data + data[offset + len(tensor.data):]
    return head.ljust(-(-len(head) // align) * align, b"\0") + data if tensors else head
