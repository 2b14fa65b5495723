"""Which ids end generation, and which one pads: generation_config, then config, then the tokenizer."""
from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from uaii.ir.diag import Malformed
from uaii.ir.loc import Key


def stop_ids(config: Mapping[str, Any], generation: Mapping[str, Any] | None, eos: int | None, size: int,
             notes: list[str]) -> tuple[int, ...]:
    """The ids of the first source that names any: generation_config.json, config.json, the tokenizer's eos_token.

    `size` is the number of embedding rows, or of tokens. Raises Malformed K511 for an id that is not in 0..size-1.
    """
    sources = (("generation_config.json", (generation or {}).get("eos_token_id")),
               ("config.json", _of(config, "eos_token_id")), ("the tokenizer's eos_token", eos))
    empty: list[str] = []
    for name, value in sources:
        ids = _ids(name, value, size)
        if ids:
            over = f" (none in {', '.join(empty)})" if empty else ""
            notes.append(f"stop ids {ids} from {name}{over}")
            return tuple(ids)
        empty.append(name)
    notes.append("WARNING: no token ends generation; only the length does")
    return ()


def pad_id(config: Mapping[str, Any], generation: Mapping[str, Any] | None, pad: int | None, size: int,
           notes: list[str]) -> int | None:
    """The first usable padding id: the tokenizer's, generation_config.json's, config.json's. None is fine for one sequence."""
    for name, value in (("the tokenizer", pad), ("generation_config.json", (generation or {}).get("pad_token_id")),
                        ("config.json", _of(config, "pad_token_id"))):
        if value is None:
            continue
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < size:
            return value
        notes.append(f"pad_token_id {json.dumps(value)} from {name} is not a token: not used")
    return None


def rows(config: Mapping[str, Any], tokens: int) -> int:
    """How many ids the model has: config.json's vocab_size, else the tokenizer's size."""
    value = _of(config, "vocab_size")
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else tokens


def _of(config: Mapping[str, Any], name: str) -> Any:
    inner = config.get("text_config")
    return config.get(name, inner.get(name) if isinstance(inner, Mapping) else None)


def _ids(name: str, value: Any, size: int) -> list[int]:
    ids = value if isinstance(value, list | tuple) else [] if value is None else [value]
    for i in ids:
        if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < size:
            raise Malformed("K511", f"eos_token_id {json.dumps(i)} is not one of the {size} token ids",
                            Key(name, "eos_token_id", json.dumps(value)),
                            why="an id that the model cannot produce never stops it")
    return list(dict.fromkeys(ids))
