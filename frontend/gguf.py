"""A GGUF file, or a set of split files, as a checkpoint."""
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from uaii.frontend import blob
from uaii.frontend.checkpoint import StoredTensor
from uaii.frontend.gguf_split import OWN, Part, gather
from uaii.ir.diag import Diagnostic
from uaii.ir.types import BLOCKS


class Gguf:
    """Metadata and tensors of a GGUF model; any part of a split set stands for the set.

    Raises Malformed and Unsupported G3xx. With `inspect`, what bars loading but not looking (types that are not loaded,
    a truncated file, missing parts) is listed by blocked(), as the error that opening for compilation raises.
    """

    format: Literal["hf", "gguf"] = "gguf"

    def __init__(self, path: Path | str, *, inspect: bool = False) -> None:
        given = Part.open(Path(path))
        parts, self._blocked = [given], list[Diagnostic]()
        try:
            parts = gather(given)
        except Diagnostic as err:
            if given.value("split.no", "u16"):  # the metadata is in the first part only
                raise
            self._blocked.append(err)
        self._blocked += [err for part in parts for err in part.blocked]
        if self._blocked and not inspect:
            raise self._blocked[0]
        first = parts[0]
        self.path = first.blob.path
        self.config_file = self.path.name
        self.version = first.header.version
        self.metadata: Mapping[str, Any] = first.header.metadata
        self.tensors: Mapping[str, StoredTensor] = {k: t for part in parts for k, t in part.tensors.items()}
        self.notes: list[str] = []
        self._parts = parts
        self._blobs = {part.blob.path: part.blob for part in parts}

    @property
    def consumed(self) -> tuple[str, ...]:
        """The metadata keys that the reader itself acted on, so that no family need account for them."""
        return tuple(key for key in OWN if key in self.metadata)

    def kind(self, key: str) -> str:
        """The GGUF type of a key that is present: u32, f32, str, bool, arr[str] and so on."""
        return self._parts[0].header.kinds[key]

    def value(self, key: str, *kinds: str) -> Any:
        """The value of a key, None when absent.

        Raises Malformed G315 when its type is none of `kinds`: GGUF readers are strict, an i32 is not a u32.
        """
        return self._parts[0].value(key, *kinds)

    def read(self, name: str) -> Any:
        """The stored values, see Checkpoint.read; raises the refusal of a type that is not loaded."""
        tensor = self.tensors[name]
        layout = BLOCKS.get(tensor.type.elem)
        row = tensor.type.sizes[-1] // layout.size * layout.nbytes if layout else None
        return blob.read(tensor, self._blobs[tensor.file], row)

    def blocked(self) -> list[Diagnostic]:
        """What bars loading; empty for a checkpoint opened without `inspect`."""
        return list(self._blocked)

    def fingerprint(self) -> dict[str, Any]:
        """Per file its name, size in bytes and the sha256 of its header."""
        return {"format": self.format, "files": [p.blob.fingerprint(p.header.end) for p in self._parts]}
