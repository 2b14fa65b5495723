"""A weights file before it is parsed: mapped into memory, and recognised when it is not a weights file at all."""
from __future__ import annotations

import hashlib
import mmap
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from uaii.frontend.checkpoint import StoredTensor
from uaii.ir.diag import Diagnostic, Malformed, Unsupported, Usage
from uaii.ir.loc import File

# bf16 has no NumPy type: its bit patterns are handed out as u16.
DTYPES = {"f64": "<f8", "f32": "<f4", "f16": "<f2", "bf16": "<u2", "i64": "<i8", "i32": "<i4", "i8": "i1", "u8": "u1",
          "bool": "u1"}
OTHER_FORMATS = {
    b"PK\x03\x04": "a zip archive (perhaps a PyTorch checkpoint)", b"\x80\x02": "a Python pickle",
    b"\x1f\x8b": "a gzip archive", b"lmgg": "a GGML file from before GGUF", b"fmgg": "a GGML file from before GGUF",
    b"tjgg": "a GGML file from before GGUF", b"algg": "a GGML adapter from before GGUF", b"GGUF": "a GGUF file",
}


KEPT = 64 << 20  # bytes handed out before their pages are let go


@dataclass(frozen=True)
class Opaque(StoredTensor):
    """A tensor that can be listed but not loaded, its element type unknown to uaii; `span` is its size in bytes."""

    span: int
    refusal: Diagnostic

    @property
    def nbytes(self) -> int:
        return self.span


def names_in(folder: Path) -> list[str]:
    """The names in a folder, sorted, hidden ones left out; raises Usage U003 when it cannot be listed."""
    try:
        return sorted(p.name for p in folder.iterdir() if not p.name.startswith("."))
    except OSError as err:
        raise unreadable(folder, err) from None


def unreadable(path: Path, err: OSError) -> Usage:
    """The error for what the operating system will not let uaii read."""
    return Usage("U003", f"{path.name} cannot be read: {err.strerror}", File(str(path)), hint="check its permissions")


def not_a_file(path: Path) -> Usage:
    """The error for a folder, a pipe or nothing where a file must be."""
    return Usage("U003", f"{path.name} is not a regular file", File(str(path)),
                 hint="give a file that can be read twice")


class Blob:
    """One file of a checkpoint, mapped read-only: nothing is read before it is asked for.

    Raises Usage U003 when the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, str(path)
        if not path.is_file():
            raise not_a_file(path)
        try:
            with path.open("rb") as file:
                self.size = path.stat().st_size
                self.map: mmap.mmap | bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if self.size else b""
        except OSError as err:
            raise unreadable(path, err) from None
        self._bytes, self._given = np.frombuffer(self.map, np.uint8), 0

    def array(self, offset: int, nbytes: int, elem: str, shape: tuple[int, ...]) -> Any:
        """The bytes at `offset` as an array that shares the file's memory; bool is a copy, any byte but 0 is true.

        Pages handed out long ago are let go: a mapped file counts as this process's memory page by page as it is read.
        """
        self._given += nbytes
        if self._given > KEPT:
            self._given = nbytes
            self._release()
        raw = self._bytes[offset:offset + nbytes].view(DTYPES.get(elem, "u1")).reshape(shape)
        return raw != 0 if elem == "bool" else raw

    def _release(self) -> None:
        """Lets go of the pages read so far; an array that still needs one reads it again."""
        if isinstance(self.map, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            self.map.madvise(mmap.MADV_DONTNEED)

    def fingerprint(self, header: int) -> dict[str, Any]:
        """File name, size in bytes, and the sha256 of the first `header` bytes."""
        digest = hashlib.sha256(self.map[:header]).hexdigest()
        return {"name": self.path.name, "size": self.size, "header_sha256": digest}


def read(tensor: StoredTensor, blob: Blob, row_bytes: int | None) -> Any:
    """The stored values (see Checkpoint.read); `row_bytes` replaces the last axis of a block type.

    Raises the tensor's own refusal when its type is not loaded, Malformed G311/H311 when the file ends before it.
    """
    if isinstance(tensor, Opaque):
        raise tensor.refusal
    end = tensor.offset + tensor.nbytes
    if end > blob.size:
        code = "H311" if blob.path.suffix == ".safetensors" else "G311"
        raise truncated(code, blob.path, end, blob.size, tensor.name)
    shape = tensor.type.sizes
    return blob.array(tensor.offset, tensor.nbytes, tensor.type.elem,
                      shape if row_bytes is None else (*shape[:-1], row_bytes))


def truncated(code: str, path: Path, need: int, have: int, tensor: str) -> Malformed:
    """The error for a file that ends before its tensors do; sizes in bytes."""
    return Malformed(code, f"{path.name} is truncated: its tensors need {need} bytes and the file has {have}",
                     File(str(path), f"tensor {tensor}"), why="a tensor past the end of the file has no values",
                     hint="download the file again (an interrupted download often looks complete)")


def refuse_placeholder(code: str, path: Path, head: bytes, size: int) -> None:
    """Raise Malformed `code` when the file is a Git LFS pointer, a web page, empty or all zeros instead of weights.

    `head` is the first bytes of the file (up to 512), `size` its length.
    """
    again = "download the file again"
    if size == 0:
        raise Malformed(code, f"{path.name} is empty (0 bytes)", File(str(path)), hint=again)
    if head.startswith(b"version https://git-lfs"):
        real = re.search(rb"^size (\d{1,20})\s*$", head, re.M)
        said = f"real size {int(real[1])} bytes" if real else "its real size is not stated"
        raise Malformed(code, f"this is a Git LFS pointer ({said}); run git lfs pull", File(str(path)),
                        why=f"{path.name} holds {size} bytes that only name the real file",
                        hint="git lfs install && git lfs pull, in the folder of the model")
    if re.match(rb"\s*<(!doctype|html|\?xml|head|body)\b", head, re.I):
        raise Malformed(code, f"{path.name} is a web page (HTML), not a model file", File(str(path), "byte 0"),
                        why="a download behind a login or an error page is saved under the name that was asked for",
                        hint=f"{again}, logged in, with the link to the raw file")
    if not any(head):
        raise Malformed(code, f"{path.name} begins with zeros only ({len(head)} bytes looked at): it was never written",
                        File(str(path), "byte 0"), hint=again)


def other_format(head: bytes) -> str:
    """What the file is instead, as a clause for an error; empty when its first bytes are not known."""
    return next((f": it is {what}" for magic, what in OTHER_FORMATS.items() if head.startswith(magic)), "")


def not_loaded(code: str, says: str, file: Path, names: list[str], hint: str) -> Unsupported:
    """The refusal of an element type, blamed on the first of the tensors that have it."""
    return Unsupported(code, says, File(str(file), f"tensor {names[0]}"), why="its bytes have no meaning in uaii",
                       hint=hint, notes=[f"{len(names)} tensors have this type"] if names[1:] else [])
