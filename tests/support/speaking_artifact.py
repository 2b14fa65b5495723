"""Artifacts with the tokenizer T0 and a chat template: one whose answers are known by hand, as each token has one follower."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tiny_artifact import Tiny, tiny_model, write_artifact, write_manifest
from tiny_tokenizers import T0_TOKENS, t0

HELLO, WORLD, BANG, END = 264, 269, 5 + ord("!"), 2
TEMPLATE = ("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
            "{% if add_generation_prompt %}<|assistant|>{% endif %}")
# hello world! <|end|>; a and b for ever; the bytes of a smiley, then "ok" and the end.
SPELT = [[4, HELLO, WORLD, BANG, END], [5 + ord("?"), HELLO], [5 + ord("a"), 5 + ord("b"), 5 + ord("a")],
         [5 + ord("."), *(5 + b for b in "😀ok".encode()), END]]


def chain() -> list[int]:
    """The follower of each token; those that nothing is spelt with go to <|end|>."""
    after = [END] * len(T0_TOKENS)
    for word in SPELT:
        for token, following in zip(word, word[1:], strict=False):
            after[token] = following
    return after


def write_speaker(folder: Path, *, context: int = 96, learned: bool = False, template: str | None = TEMPLATE,
                  **manifest: Any) -> Tiny:
    """Writes the artifact; `manifest` overrides entries, the stop ids are [2] else."""
    tiny = tiny_model(chain=chain(), context=context, layers=1, learned=learned)
    tiny.weights["wpe"][:] = 0
    write_tokenized(folder, tiny, template, **{"stop_ids": [END]} | manifest)
    return tiny


def write_babbler(folder: Path) -> Tiny:
    """The same tokenizer and template over random weights: answers depend on everything before them."""
    tiny = tiny_model(vocab=len(T0_TOKENS), context=512, seed=9)
    write_tokenized(folder, tiny, TEMPLATE)
    return tiny


def write_tokenized(folder: Path, tiny: Tiny, template: str | None, **manifest: Any) -> None:
    """An artifact of this model with T0 and a chat template."""
    write_artifact(folder, tiny)
    (folder / "tokenizer.json").write_text(json.dumps(t0()))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    write_manifest(folder, tiny, **manifest)
