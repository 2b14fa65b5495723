"""The header of a GGUF file, every length checked against the bytes that are there.

Source: docs/gguf.md and gguf.cpp of ggml. A header is hostile until proved otherwise: no count, length or product in it
is believed before it is bounded, so a short file cannot make the reader allocate much more than its own size.
"""
from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from uaii.frontend.blob import Blob, other_format, refuse_placeholder
from uaii.frontend.gguf_types import GgmlType, ggml_type
from uaii.frontend.jsonfile import said
from uaii.ir.diag import Malformed, Unsupported
from uaii.ir.loc import File

SCALARS = {0: ("u8", "<B"), 1: ("i8", "<b"), 2: ("u16", "<H"), 3: ("i16", "<h"), 4: ("u32", "<I"), 5: ("i32", "<i"),
           6: ("f32", "<f"), 7: ("bool", "<B"), 10: ("u64", "<Q"), 11: ("i64", "<q"), 12: ("f64", "<d")}
STRING, ARRAY = 8, 9
# The largest real header (262k tokens, their scores and 500k merges) has 2^21 array elements in 2^25 bytes.
MAX_ELEMENTS, MAX_HEADER = 1 << 24, 1 << 29
MIN_PAIR, MIN_INFO = 14, 25  # bytes of the shortest key-value pair and of the shortest tensor info


@dataclass(frozen=True)
class Info:
    """A tensor as declared: `dims` innermost first, `offset` from the start of the data, `at` the place of the info."""

    name: str
    dims: tuple[int, ...]
    type: GgmlType
    offset: int
    at: int


@dataclass(frozen=True)
class Header:
    """What a file says before its data; `end` is where the infos end, `data` where the tensors begin (bytes)."""

    version: int
    metadata: Mapping[str, Any]
    kinds: Mapping[str, str]
    infos: tuple[Info, ...]
    alignment: int
    end: int

    @property
    def data(self) -> int:
        return padded(self.end, self.alignment)


def padded(n: int, alignment: int) -> int:
    """`n` rounded up to a multiple of `alignment`."""
    return -(-n // alignment) * alignment


def read_header(blob: Blob) -> Header:
    """The header of a file.

    Raises Malformed G300-G307, Unsupported G302 (version 1, byte order), each with the byte offset.
    """
    version = _preamble(blob)
    cursor = _Cursor(blob, 8)
    n_infos, n_pairs = cursor.number("<q", "the tensor count"), cursor.number("<q", "the key count")
    left = blob.size - cursor.pos
    if n_infos < 0 or n_pairs < 0 or n_infos * MIN_INFO + n_pairs * MIN_PAIR > left:
        raise cursor.bad("G303", f"{n_infos} tensors and {n_pairs} keys are declared, and {left} bytes follow", 8)
    metadata: dict[str, Any] = {}
    kinds: dict[str, str] = {}
    for _ in range(n_pairs):
        at = cursor.pos
        key = cursor.string("a key").decode("utf-8", "surrogateescape")
        if not key or not key.isprintable():
            raise cursor.bad("G304", f"a key is {'empty' if not key else ascii(key[:80])}", at)
        if key in metadata:
            raise cursor.bad("G304", f"the key {key} is there twice", at)
        kinds[key], metadata[key] = cursor.value(key)
    alignment = _alignment(cursor, metadata, kinds)
    infos: dict[str, Info] = {}
    for _ in range(n_infos):
        info = _info(cursor)
        if info.name in infos:
            raise cursor.bad("G307", f"the tensor {info.name} is there twice", info.at)
        if info.offset % alignment:
            says = f"the tensor {info.name} is at {info.offset}, not a multiple of {alignment}"
            raise cursor.bad("G310", says, info.at)
        infos[info.name] = info
    return Header(version, metadata, kinds, tuple(infos.values()), alignment, cursor.pos)


def _preamble(blob: Blob) -> int:
    head, file = bytes(blob.map[:512]), blob.name
    refuse_placeholder("G301", blob.path, head, blob.size)
    if head[:4] != b"GGUF"[:len(head)]:
        raise Malformed("G300", f"{blob.path.name} is not a GGUF file{other_format(head)}", File(file, "byte 0"),
                        why=f"it begins with {head[:4]!r}, not with GGUF", hint="give a .gguf file or a model folder")
    if len(head) < 24:
        says = f"{blob.path.name} is cut inside its header: it needs at least 24 bytes and has {blob.size}"
        raise Malformed("G303", says, File(file, f"byte {blob.size}"), hint="download the file again")
    version = int.from_bytes(head[4:8], "little")
    if version in (2, 3):
        return version
    if version and version & 0xFFFF == 0:
        says, hint = "is a big-endian GGUF file", "take the little-endian file, or run gguf_convert_endian.py"
    else:
        says, hint = f"has GGUF version {version}; versions 2 and 3 are read", "convert the original model again"
    raise Unsupported("G302", f"{blob.path.name} {says}", File(file, "byte 4"), hint=hint)


def _alignment(cursor: _Cursor, metadata: Mapping[str, Any], kinds: Mapping[str, str]) -> int:
    key = "general.alignment"
    if key not in metadata:
        return 32
    value = metadata[key]
    if kinds[key] != "u32" or value <= 0 or value & (value - 1):
        raise cursor.bad("G306", f"{key} is {said(value)} ({kinds[key]}), must be a power of two (u32)", at=key)
    return int(value)


def _info(cursor: _Cursor) -> Info:
    at = cursor.pos
    raw = cursor.string("a tensor name")
    name = raw.decode("utf-8", "surrogateescape")
    if not name or len(raw) >= 64 or not name.isprintable():
        fault = f"has {len(raw)} bytes, 1 to 63 are allowed" if not name or len(raw) >= 64 else f"is {ascii(name)}"
        raise cursor.bad("G307", f"a tensor name {fault}", at)
    rank = cursor.number("<I", f"the rank of {name}")
    if rank > 4:
        raise cursor.bad("G307", f"the tensor {name} has {rank} dimensions, 4 at most", at)
    dims = tuple(cursor.number("<q", f"the dimensions of {name}") for _ in range(rank))
    if any(d <= 0 for d in dims) or math.prod(dims) >= 1 << 63:
        raise cursor.bad("G307", f"the tensor {name} has the dimensions {list(dims)}", at)
    number = cursor.number("<I", f"the type of {name}")
    return Info(name, dims, ggml_type(number), cursor.number("<Q", f"the offset of {name}"), at)


class _Cursor:
    """A place in the header that cannot leave the file."""

    def __init__(self, blob: Blob, pos: int) -> None:
        self.blob, self.map, self.pos = blob, blob.map, pos
        self.size, self.elements = min(blob.size, MAX_HEADER), 0

    def bad(self, code: str, says: str, at: int | str) -> Malformed:
        place = f"byte {at}" if isinstance(at, int) else at
        return Malformed(code, f"{self.blob.path.name}: {says}", File(self.blob.name, place),
                         why="a header that contradicts itself or its file cannot be trusted for anything",
                         hint="download the file again, or convert the original model again")

    def take(self, n: int, what: str) -> int:
        """The place of the next `n` bytes, which are there."""
        at, end = self.pos, self.pos + n
        if end > self.size:
            whose = f"the file has {self.blob.size}" if end > self.blob.size else f"a header has at most {MAX_HEADER}"
            raise self.bad("G303", f"{what} needs {end} bytes and {whose}", at)
        self.pos = end
        return at

    def number(self, form: str, what: str) -> Any:
        return struct.unpack_from(form, self.map, self.take(struct.calcsize(form), what))[0]

    def string(self, what: str) -> bytes:
        at = self.take(self.number("<Q", f"the length of {what}"), what)
        return bytes(self.map[at:self.pos])

    def value(self, key: str) -> tuple[str, Any]:
        """The kind (u32, str, arr[str] ...) and the value of a key."""
        at = self.pos
        number = self.number("<I", f"the type of {key}")
        if number == STRING:
            return "str", self.string(key).decode("utf-8", "surrogateescape")
        if number == ARRAY:
            return self._array(key)
        if number not in SCALARS:
            raise self.bad("G305", f"{key} has value type {number}, which GGUF does not define", at)
        kind, form = SCALARS[number]
        value = self.number(form, key)
        if kind in ("f32", "f64") and not math.isfinite(value):
            raise self.bad("G305", f"{key} is {value}", at)
        return kind, bool(value) if kind == "bool" else value

    def _array(self, key: str) -> tuple[str, list[Any]]:
        at = self.pos
        number, n = self.number("<I", f"the element type of {key}"), self.number("<Q", f"the length of {key}")
        if number == ARRAY:
            raise self.bad("G305", f"{key} is an array of arrays", at)
        if number != STRING and number not in SCALARS:
            raise self.bad("G305", f"{key} has elements of type {number}, which GGUF does not define", at)
        kind, form = SCALARS.get(number, ("str", "<Q"))
        start = self.take(n * struct.calcsize(form), key)
        self.elements += n
        if self.elements > MAX_ELEMENTS:
            raise self.bad("G303", f"{key} takes the header over {MAX_ELEMENTS} array elements", at)
        if number == STRING:
            return "arr[str]", self._strings(key, n, start)
        values = np.frombuffer(bytes(self.map[start:self.pos]), form)
        return f"arr[{kind}]", (values != 0).tolist() if kind == "bool" else values.tolist()

    def _strings(self, key: str, n: int, pos: int) -> list[str]:
        size, data, length = self.size, self.map, struct.Struct("<Q").unpack_from
        out: list[str] = []
        # One loop without calls: a vocabulary has 10^5 to 10^6 strings.
        for _ in range(n):
            end = pos + 8
            if end > size or (stop := end + length(data, pos)[0]) > size:
                self.pos = pos
                self.take((end if end > size else stop) - pos, f"element {len(out)} of {key}")
            out.append(data[end:stop].decode("utf-8", "surrogateescape"))
            pos = stop
        self.pos = pos
        return out
