"""Added tokens that the library would give other ids than the file does."""
from __future__ import annotations

import json
from typing import Any

from uaii.ir.diag import Malformed
from uaii.ir.loc import File


def misplaced(made: Any, text: str) -> dict[str, int]:
    """Added tokens (text to id in the file) that the loaded tokenizer knows under another id.

    The library numbers added tokens that the vocabulary lacks from its end on, whatever id the file says, in silence.
    """
    added = json.loads(text).get("added_tokens") or []
    return {token["content"]: token["id"] for token in added if made.token_to_id(token["content"]) != token["id"]}


def placed(text: str, moved: dict[str, int], file: str) -> str:
    """The tokenizer.json with these tokens in its vocabulary, which keeps their ids.

    Raises Malformed K513 when an id belongs to another token already, or the model's vocabulary cannot have gaps.
    """
    spec = json.loads(text)
    vocab = spec["model"]["vocab"]
    taken = {i: token for token, i in vocab.items()} if isinstance(vocab, dict) else None
    for token, i in moved.items():
        if taken is None or taken.get(i, token) != token:
            held = "" if taken is None else f", which is {taken[i]!r} in the vocabulary"
            raise Malformed("K513", f"added token {token!r} has id {i}{held}", File(file, "added_tokens"),
                            why="the tokenizers library would give it another id in silence",
                            hint="save the tokenizer again with the library that made it")
        vocab[token] = i
    return json.dumps(spec, ensure_ascii=False)
