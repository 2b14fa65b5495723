"""Control tokens as plain text, from the loaded model: the ids of a tokenizer that was never able to make them."""
from __future__ import annotations

import json
import random
from typing import Any

import pytest
import tokenizers
from tiny_tokenizers import SPECIAL, mistral_gguf, t0, t0_gguf, t1
from tokenizer_texts import texts

from uaii.frontend.tokenizer import parts
from uaii.frontend.tokenizer.gguf import from_gguf
from uaii.frontend.tokenizer.literal import hidden_name, without_special
from uaii.frontend.tokenizer.plain import Plain


def changed(spec: dict[str, Any], *more: dict[str, Any], **model: Any) -> str:
    """The text of a tokenizer.json with further added tokens and other fields of the model."""
    return json.dumps(spec | {"added_tokens": [*spec["added_tokens"], *more], "model": spec["model"] | model})


def user(id_: int, text: str) -> dict[str, Any]:
    return parts.added_token(id_, text, special=False)


ROBERTA = {"type": "RobertaProcessing", "sep": ["<|end|>", 2], "cls": ["<|bos|>", 1], "trim_offsets": True,
           "add_prefix_space": False}
SHARED = {
    "t0": json.dumps(t0(bos=True)), "t0 strips": json.dumps(t0(flags={"rstrip": True, "lstrip": True})),
    "t0 normalizes": json.dumps(t0(flags={"normalized": True}, normalizer={"type": "Lowercase"})),
    "t0 user tokens outside the model": changed(t0(bos=True), user(270, "<tool>"), user(271, "<|user|")),
    "t0 roberta": json.dumps(t0() | {"post_processor": ROBERTA}), "t0 whole pieces": changed(t0(), ignore_merges=True),
    "t0 bos outside the model": changed(t0() | {"post_processor": parts.around(("<bos>", 270), None)},
                                        parts.added_token(270, "<bos>", special=True)),
    "t1 legacy": json.dumps(t1("legacy")), "t1 first": json.dumps(t1("first")), "t1 never": json.dumps(t1("never")),
    "gguf": from_gguf(t0_gguf(pre="llama-bpe"), "t.gguf").tokenizer_json,
    "mistral": from_gguf(mistral_gguf(), "m.gguf").tokenizer_json}
EXACT = {
    "a merge makes one": changed(t0(), parts.added_token(264, "hello", special=True)),
    "one on the way to another": changed(t0(), parts.added_token(263, "hell", special=True)),
    "a whole piece that nothing joins to": changed(t0(), parts.added_token(270, "xyz", special=True), ignore_merges=True,
                                                   vocab=t0()["model"]["vocab"] | {"xyz": 270}),
    "unigram": json.dumps(t1("legacy") | {"model": {
        "type": "Unigram", "unk_id": 0, "byte_fallback": False,
        "vocab": [["<unk>", -9.0], ["<s>", 0.0], ["</s>", -1.0], *([c, -2.0] for c in "▁</s>helowrd")]}}),
    "a single character": changed(t0(), parts.added_token(5 + ord("h"), "h", special=True)),
    "whole pieces and a merge": changed(t0(), parts.added_token(264, "hello", special=True), ignore_merges=True),
    "whole pieces and a character": changed(t0(), parts.added_token(5 + ord("h"), "h", special=True), ignore_merges=True),
    "an id that the vocabulary skips": changed(t0(), vocab={k: v + (v > 268) for k, v in t0()["model"]["vocab"].items()}),
    "a prefix of inner pieces": changed(t0(), continuing_subword_prefix="##", merges=[], vocab=t0()["model"]["vocab"])}


def both(text: str, also: frozenset[int] = frozenset()) -> tuple[Plain, tokenizers.Tokenizer]:
    exact = tokenizers.Tokenizer.from_str(without_special(text, "5eed", also))
    return Plain(tokenizers.Tokenizer.from_str(text), "5eed", also, lambda: exact), exact


def samples() -> list[str]:
    rng, names = random.Random(9), [*SPECIAL, "<s>", "</s>", "<tool>", hidden_name(2, "5eed"), hidden_name(3, "5eed"), " ", "\n"]
    mixed = ["".join(rng.choice([*names, text, "hello world"]) for _ in range(6)) for text in texts("plain", 150)]
    return ["", *SPECIAL, "".join(SPECIAL), "hell", "hello hell h", "<|END|>", "xyz", "hello xyz", *mixed]


@pytest.mark.parametrize("also", [frozenset(), frozenset({270})])
@pytest.mark.parametrize("name", [*SHARED, *EXACT])
def test_the_ids_are_those_of_a_model_without_the_tokens(name: str, also: frozenset[int]) -> None:
    plain, exact = both((SHARED | EXACT)[name], also)
    for text in samples():
        for add in (False, True):
            assert plain.encode(text, add_special=add) == exact.encode(text, add_special_tokens=add).ids, (text, add)


@pytest.mark.parametrize("name", SHARED)
def test_the_loaded_model_is_enough(name: str) -> None:
    """No second model is made, which takes seconds for a large vocabulary."""
    def never() -> tokenizers.Tokenizer:
        raise AssertionError("the model was made again")

    plain = Plain(tokenizers.Tokenizer.from_str(SHARED[name]), "5eed", (), never)
    assert all(plain.encode(text, add_special=True) is not None for text in samples())
