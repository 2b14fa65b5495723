"""A tokenizer.json in which no text can become a control token."""
from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any


def hidden_name(id_: int, nonce: str) -> str:
    """What a control token goes by there: noncharacters around a number that a text's author cannot know."""
    return f"\U0010fffe{nonce}{id_}\U0010ffff"


def without_special(text: str, nonce: str, also: Collection[int] = ()) -> str:
    """The same tokenizer with its special tokens, and those in `also`, under names that no text holds, at the same ids.

    Other added tokens that are not special still match. Merges that would build a special token go, and the special pieces of a
    Unigram model or of a vocabulary with ignore_merges cannot be met as ordinary pieces either. The unknown token stays.
    """
    spec = json.loads(text)
    model = spec["model"]
    unk = model.get("unk_token")
    special = {token["content"]: token["id"] for token in spec.get("added_tokens") or []
               if (token["special"] or token["id"] in also) and token["content"] != unk}
    names = {content: hidden_name(id_, nonce) for content, id_ in special.items()}
    for token in spec.get("added_tokens") or []:
        token["content"] = names.get(token["content"], token["content"])
    vocab = model["vocab"]
    if isinstance(vocab, list):
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocab]
    else:
        model["vocab"] = {names.get(piece, piece): id_ for piece, id_ in vocab.items()}
    if "merges" in model:
        model["merges"] = [pair for pair in model["merges"] if not _touches(pair, names)]
    for processor in _processors(spec.get("post_processor")):
        _rename(processor, names)
    return json.dumps(spec, ensure_ascii=False)


def _touches(pair: Any, names: dict[str, str]) -> bool:
    left, right = pair.split(" ", 1) if isinstance(pair, str) else pair
    return left in names or right in names or left + right in names


def _processors(spec: Any) -> list[Any]:
    if spec is None:
        return []
    return [p for part in spec["processors"] for p in _processors(part)] if spec["type"] == "Sequence" else [spec]


def _rename(processor: Any, names: dict[str, str]) -> None:
    if processor["type"] in ("RobertaProcessing", "BertProcessing"):
        for side in ("sep", "cls"):
            processor[side][0] = names.get(processor[side][0], processor[side][0])
