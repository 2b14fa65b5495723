"""What a checkpoint is to the rest of the compiler, whatever file it came from."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from uaii.ir.types import Tensor


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a checkpoint: its type as stored (outermost dimension first), its file and its bytes' place there."""

    name: str
    type: Tensor
    file: Path
    offset: int

    @property
    def nbytes(self) -> int:
        return self.type.nbytes


class Checkpoint(Protocol):
    """Metadata at once, tensors lazily. Opening one reads headers only."""

    format: Literal["hf", "gguf"]
    path: Path
    config_file: str                        # the file that metadata is quoted from, e.g. config.json
    metadata: Mapping[str, Any]             # config.json, or the GGUF key-values
    tensors: Mapping[str, StoredTensor]

    def read(self, name: str) -> Any:
        """The stored values as a NumPy array that shares the file's memory.

        f32/f16/f64/ints: an array of that dtype and the tensor's shape; bf16: u16 bit patterns of the tensor's shape;
        block types: u8 [..., row bytes] (the last axis is the bytes of a row).
        """
        ...

    def fingerprint(self) -> dict[str, Any]:
        """What identifies the source: per file its name, size and the sha256 of its header."""
        ...


@dataclass
class TokenizerFiles:
    """A tokenizer in the form that the artifact ships, whatever the source had.

    `tokenizer_json` is the text of tokenizer.json; `config` becomes tokenizer_config.json; `template` chat_template.jinja.
    `stop_ids` ends generation; `bos_id` is what encode() adds in front when `add_bos`. `notes` says which rule decided what.
    `templates` holds the named chat templates beside the default one, e.g. tool_use.
    """

    source: str
    tokenizer_json: str
    config: dict[str, Any]
    template: str | None = None
    vocab_size: int = 0
    bos_id: int | None = None
    eos_id: int | None = None
    pad_id: int | None = None
    add_bos: bool = False
    stop_ids: tuple[int, ...] = ()
    generation: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    templates: dict[str, str] = field(default_factory=dict)
