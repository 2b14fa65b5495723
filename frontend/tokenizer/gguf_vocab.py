"""The vocabulary of a GGUF file, checked: texts, types, scores, and the scalar keys beside them."""
from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from uaii.ir.diag import Malformed
from uaii.ir.loc import Key

GGML = "tokenizer.ggml."


class Kind(IntEnum):
    """Values of tokenizer.ggml.token_type."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Vocab:
    """Token texts by id, all different and all valid Unicode; `notes` says what had to be renamed for that."""

    file: str
    metadata: Mapping[str, Any]
    tokens: tuple[str, ...]
    types: tuple[int, ...]
    scores: tuple[float, ...] | None
    ids: Mapping[str, int]
    notes: tuple[str, ...]

    def key(self, name: str) -> Key:
        """The origin of tokenizer.ggml.<name>."""
        return key_of(self.file, self.metadata, GGML + name)

    def flag(self, name: str, default: bool) -> bool:
        """A boolean key. Raises Malformed K503 when it is no boolean."""
        value = self.metadata.get(GGML + name, default)
        if not isinstance(value, bool):
            raise Malformed("K503", f"{GGML}{name} must be a boolean", self.key(name))
        return value

    def texts(self, kind: Kind) -> list[int]:
        """The ids of one type, ascending."""
        return [i for i, t in enumerate(self.types) if t == kind]


def key_of(file: str, metadata: Mapping[str, Any], name: str) -> Key:
    """The origin of a metadata key; arrays are shown by their length."""
    value = metadata.get(name)
    if name not in metadata:
        shown = "absent"
    elif isinstance(value, str | int | float | bool):
        shown = json.dumps(value)
    else:
        shown = f"{len(value)} items" if isinstance(value, list) else type(value).__name__
    return Key(file, name, shown)


def strings(file: str, metadata: Mapping[str, Any], name: str) -> list[str]:
    """An array of strings. Raises Malformed K503 when the key is absent or holds anything else."""
    value = metadata.get(name)
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise Malformed("K503", f"{name} must be an array of strings", key_of(file, metadata, name),
                        hint="convert the model again with a current converter")
    return value


def read_vocab(metadata: Mapping[str, Any], file: str) -> Vocab:
    """Reads tokens, token_type and scores.

    Raises Malformed K503 for a missing or mistyped array or one that is too short, K505 for a text that two ids share.
    As in llama.cpp, an empty text becomes [EMPTY_id]; a text that is not UTF-8 is renamed, as no text can match it.
    """
    texts = strings(file, metadata, GGML + "tokens")
    types = _numbers(file, metadata, "token_type", len(texts), int)
    scores = _numbers(file, metadata, "scores", len(texts), int | float)
    names, renamed = [], 0
    for i, text in enumerate(texts):
        name = text or f"[EMPTY_{i}]"
        if any("\ud800" <= c <= "\udfff" for c in name):
            name, renamed = _unmatchable(name, i), renamed + 1
        names.append(name)
    ids = {name: i for i, name in enumerate(names)}
    if len(ids) != len(names):
        twice = next(name for i, name in enumerate(names) if ids[name] != i)
        raise Malformed("K505", f"the token {ascii(twice)} is in the vocabulary twice (ids {names.index(twice)} and "
                        f"{ids[twice]})", key_of(file, metadata, GGML + "tokens"),
                        why="a text must stand for one id; llama.cpp does not load such a file either")
    notes = (f"{renamed} token texts are not UTF-8: they are named [BYTES_...] and never match text",) if renamed else ()
    kinds = tuple(types) if types is not None else (int(Kind.NORMAL),) * len(names)
    return Vocab(file, metadata, tuple(names), tuple(int(k) for k in kinds),
                 None if scores is None else tuple(float(s) for s in scores), ids, notes)


def _unmatchable(text: str, id_: int) -> str:
    raw = text.encode("utf-8", "surrogateescape")
    # Old SentencePiece files hold the byte itself where newer ones hold its <0xHH> name.
    return f"<0x{raw[0]:02X}>" if len(raw) == 1 else f"[BYTES_{id_}_{raw.hex()}]"


def _numbers(file: str, metadata: Mapping[str, Any], name: str, least: int, kind: Any) -> list[Any] | None:
    value = metadata.get(GGML + name)
    if value is None:
        return None
    where = key_of(file, metadata, GGML + name)
    if not isinstance(value, list) or not all(isinstance(x, kind) and not isinstance(x, bool) for x in value):
        raise Malformed("K503", f"{GGML}{name} must be an array of numbers", where)
    if len(value) < least:
        raise Malformed("K503", f"{GGML}{name} has {len(value)} entries for {least} tokens", where)
    return value[:least]
