"""The header of a safetensors file, every number checked against the file.

Source: the format section of https://github.com/huggingface/safetensors: u64 header length, JSON, data without holes.
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from uaii.frontend.blob import Blob, Opaque, not_loaded, other_format, refuse_placeholder, truncated
from uaii.frontend.checkpoint import StoredTensor
from uaii.frontend.jsonfile import kind, parse_object, said, shown
from uaii.ir.diag import Diagnostic, Malformed
from uaii.ir.loc import File
from uaii.ir.types import FP8, Tensor

# Bits of one element. The format's own list: a dtype that is not here is not safetensors.
BITS = {"BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64, "F16": 16,
        "BF16": 16, "F32": 32, "F64": 64, "C64": 64, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
        "F8_E5M2FNUZ": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4}
LOADED = ("F32", "F16", "BF16", "F64", "I64", "I32", "I8", "U8", "BOOL")
MAX_RANK = 32
MAX_HEADER = 100_000_000  # bytes; the limit of the reference reader


@dataclass(frozen=True)
class Shard:
    """One safetensors file: its tensors in the order of their data (from byte `data` on), and what bars loading."""

    blob: Blob
    tensors: dict[str, StoredTensor]
    metadata: dict[str, Any]
    blocked: list[Diagnostic]
    data: int


def dtype_refusal(dtype: str, blob: Blob, names: list[str]) -> Diagnostic:
    """The error for tensors of an element type that is not loaded."""
    return not_loaded("H309", f"safetensors dtype {dtype} is not loaded. Convert this checkpoint to BF16.", blob.path,
                      names, "load it with transformers and save it with torch_dtype=bfloat16")


def read_shard(blob: Blob, *, fp8: bool = False) -> Shard:
    """The header of a safetensors file; `fp8` where codes of FP8 are read, since factors stand beside them.

    Raises Malformed H301 (not weights at all), H302 (header length or text), H303 (an entry), H304 (holes, overlaps,
    bytes after the last tensor), H311 (cut inside the header); data that ends too soon is listed in `blocked` (H311).
    """
    header, data = _header(blob)
    meta = header.pop("__metadata__", {})
    if not isinstance(meta, dict) or not all(isinstance(v, str) for v in meta.values()):
        raise _bad("H303", blob, "__metadata__ must map names to strings", "__metadata__")
    spans = {name: _entry(blob, name, entry) for name, entry in header.items()}
    refused: dict[str, list[str]] = {}
    for name, (dtype, *_) in spans.items():
        if dtype not in LOADED and not (fp8 and dtype == FP8.upper()):
            refused.setdefault(dtype, []).append(name)
    refusals = {dtype: dtype_refusal(dtype, blob, names) for dtype, names in refused.items()}
    tensors: dict[str, StoredTensor] = {}
    end = 0
    for name, (dtype, shape, begin, stop) in sorted(spans.items(), key=lambda item: item[1][2:]):
        if begin != end:
            fault = "a hole" if begin > end else "an overlap"
            raise _bad("H304", blob, f"{shown(name)} begins at {begin} and the tensor before it ends at {end}: {fault}",
                       f"{shown(name)}.data_offsets")
        end = stop
        typed = Tensor(dtype.lower(), shape)
        tensors[name] = StoredTensor(name, typed, blob.path, data + begin)
        if dtype in refusals:
            tensors[name] = Opaque(name, typed, blob.path, data + begin, stop - begin, refusals[dtype])
    blocked = list(refusals.values())
    if data + end > blob.size:
        blocked.insert(0, truncated("H311", blob.path, data + end, blob.size, next(reversed(tensors))))
    if data + end < blob.size:
        raise _bad("H304", blob, f"{blob.size - data - end} bytes follow the last tensor", f"byte {data + end}")
    return Shard(blob, tensors, meta, blocked, data)


def _header(blob: Blob) -> tuple[dict[str, Any], int]:
    head = bytes(blob.map[:512])
    refuse_placeholder("H301", blob.path, head, blob.size)
    if blob.size < 8:
        raise Malformed("H311", f"{blob.path.name} is truncated: a header needs 8 bytes and the file has {blob.size}",
                        File(blob.name, f"byte {blob.size}"), hint="download the file again")
    length = int.from_bytes(head[:8], "little")
    if length > MAX_HEADER or (blob.size > 8 and head[8:9] != b"{"):
        says = f"is not a safetensors file{other_format(head)}"
        raise _bad("H302", blob, f"{says} (header of {length} bytes, which must begin with {{)", "byte 0")
    if 8 + length > blob.size:
        says = f"{blob.path.name} is truncated: its header needs {8 + length} bytes and the file has {blob.size}"
        raise Malformed("H311", says, File(blob.name, "byte 0"), hint="download the file again")
    return parse_object("H302", blob.path, bytes(blob.map[8:8 + length]), "header"), 8 + length


def _entry(blob: Blob, name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    what = shown(name)
    if not name or not name.isprintable():
        raise _bad("H303", blob, f"a tensor name is {what or 'empty'}", what)
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        has = ", ".join(map(shown, entry)) if isinstance(entry, dict) else kind(entry)
        raise _bad("H303", blob, f"{what} must have dtype, shape and data_offsets, has {has}", what)
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        says = f"{what} has the dtype {said(dtype)}, which safetensors does not define"
        raise _bad("H303", blob, says, f"{what}.dtype")
    if not _naturals(shape) or len(shape) > MAX_RANK or math.prod(d or 1 for d in shape) >= 1 << 56:
        raise _bad("H303", blob, f"{what} has the shape {said(shape)}", f"{what}.shape")
    if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _bad("H303", blob, f"{what} has the data_offsets {said(offsets)}", f"{what}.data_offsets")
    bits = math.prod(shape) * BITS[dtype]
    if bits != 8 * (offsets[1] - offsets[0]):
        span = offsets[1] - offsets[0]
        raise _bad("H303", blob, f"{what} {dtype}{shape} needs {-(-bits // 8)} bytes and its data_offsets span {span}",
                   f"{what}.data_offsets")
    return dtype, tuple(shape), offsets[0], offsets[1]


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(x) is int and 0 <= x < 1 << 63 for x in value)


def _bad(code: str, blob: Blob, says: str, at: str) -> Malformed:
    return Malformed(code, f"{blob.path.name}: {says}", File(blob.name, at),
                     why="a header that contradicts itself or its file cannot be trusted for anything",
                     hint="download the file again, or save the model again")
