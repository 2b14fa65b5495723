"""Where each tensor of a GGUF file lies, proved to be inside the file and apart from the others."""
from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from uaii.frontend.blob import Blob, Opaque, not_loaded, truncated
from uaii.frontend.checkpoint import StoredTensor
from uaii.frontend.gguf_header import Header, Info, padded
from uaii.ir.diag import Diagnostic, Malformed
from uaii.ir.loc import File
from uaii.ir.types import Tensor


def lay_out(blob: Blob, header: Header) -> tuple[dict[str, StoredTensor], list[Diagnostic]]:
    """The tensors by name in file order, and what bars loading: types that are not loaded, a file that ends too soon.

    Any order and any gaps are accepted. Raises Malformed G308 (row not a whole number of blocks), G310 (two tensors
    share bytes), G314 (several GGUF files joined in one).
    """
    refusals = _refusals(blob.path, header.infos)
    tensors = {info.name: _stored(blob, header, info, refusals) for info in header.infos}
    placed = sorted(tensors.values(), key=lambda t: (t.offset, t.nbytes))
    for before, after in zip(placed, placed[1:], strict=False):
        if before.offset + before.nbytes > after.offset:
            raise _bad("G310", blob, f"the tensors {before.name} and {after.name} share bytes", f"byte {after.offset}")
    end = placed[-1].offset + placed[-1].nbytes if placed else header.end
    for place in (end, padded(end, header.alignment)):
        if bytes(blob.map[place:place + 4]) == b"GGUF":
            says = f"{blob.path.name} is several GGUF files joined into one: another begins at byte {place}"
            raise Malformed("G314", says, File(blob.name, f"byte {place}"), why="only the first of them would be read",
                            hint="keep the parts as they were, PREFIX-00001-of-0000N.gguf, and give the first; "
                                 "llama-gguf-split --merge makes one file of them")
    blocked: list[Diagnostic] = list(refusals.values())
    if placed and end > blob.size:
        blocked.insert(0, truncated("G311", blob.path, end, blob.size, placed[-1].name))
    return tensors, blocked


def _refusals(path: Path, infos: Sequence[Info]) -> dict[str, Diagnostic]:
    names: dict[str, list[str]] = {}
    types = {info.type.name: info.type for info in infos if info.type.elem is None}
    for info in infos:
        names.setdefault(info.type.name, []).append(info.name)
    hint = "requantise the original model with llama-quantize, for example to Q4_K_M"
    return {name: not_loaded("G309", f"GGUF tensor type {name} {kind.refusal} (tensor {names[name][0]})", path,
                             names[name], hint) for name, kind in types.items()}


def _stored(blob: Blob, header: Header, info: Info, refusals: dict[str, Diagnostic]) -> StoredTensor:
    shape, offset, kind = tuple(reversed(info.dims)), header.data + info.offset, info.type
    row = info.dims[0] if info.dims else 1
    if kind.block is None:
        return Opaque(info.name, Tensor(kind.name, shape), blob.path, offset, 0, refusals[kind.name])
    if row % kind.block.size:
        says = f"the rows of {info.name} have {row} values and a block of {kind.name} has {kind.block.size}"
        raise _bad("G308", blob, says, f"byte {info.at}")
    if kind.elem is None:
        span = math.prod(shape) // kind.block.size * kind.block.nbytes
        return Opaque(info.name, Tensor(kind.name.lower(), shape), blob.path, offset, span, refusals[kind.name])
    return StoredTensor(info.name, Tensor(kind.elem, shape), blob.path, offset)


def _bad(code: str, blob: Blob, says: str, at: str) -> Malformed:
    return Malformed(code, f"{blob.path.name}: {says}", File(blob.name, at), hint="convert the original model again")
