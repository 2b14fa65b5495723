"""The text that an artifact and the reference are both given."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from uaii.backends.ort.manifest import Manifest
from uaii.backends.ort.session import no_prompt
from uaii.frontend.tokenizer.text import Tokenizer
from uaii.ir.diag import Usage
from uaii.model import no_tokenizer

TEXT = ("Every morning the old lighthouse keeper wrote three numbers into his book: the height of the water, the ships that had "
        "passed since dawn, and the days that were left until the harvest moon.")
COUNT = 24  # tokens, when nobody says how many
STRIDE = 7919  # a prime, so that ids without a text are spread over the vocabulary


@dataclass(frozen=True)
class Text:
    """Token ids, and the tokenizer that says what they are, if the artifact has one."""

    ids: list[int]
    tokenizer: Tokenizer | None = None

    def piece(self, token: int) -> str:
        """What an id says; empty without a tokenizer."""
        return self.tokenizer.pieces([token])[0] if self.tokenizer else ""


def text_of(folder: Path, manifest: Manifest, prompt: str | None, token_ids: Sequence[int] | None, tokens: int | None) -> Text:
    """The prompt, the ids, or a text of ours, cut or repeated to `tokens`.

    Raises Unsupported K520 for a prompt without a tokenizer, and Usage S611, S612, S613, U030.
    """
    if prompt is not None and token_ids is not None:
        raise Usage("U030", "--prompt and --token-ids exclude each other")
    tokenizer = Tokenizer.from_artifact(folder) if (folder / "tokenizer.json").is_file() else None
    count, vocab = tokens, manifest.vocab_size
    if token_ids is not None:
        ids = list(token_ids)
    elif prompt is not None:
        if tokenizer is None:
            raise no_tokenizer(folder)
        ids = tokenizer.encode(prompt)
    else:
        count = min(COUNT, manifest.context_length) if tokens is None else tokens
        ids = tokenizer.encode(TEXT) if tokenizer else [STRIDE * i % vocab for i in range(1, count + 1)]
    if count is not None and ids:
        ids = (ids * (count // len(ids) + 1))[:max(count, 0)]
    if not ids:
        raise no_prompt()
    if bad := [i for i in ids if type(i) is not int or not 0 <= i < vocab]:
        raise Usage("S611", f"token id {bad[0]} at position {ids.index(bad[0])} is outside the vocabulary of {vocab}")
    if len(ids) > manifest.context_length:
        raise Usage("S612", f"{len(ids)} tokens do not fit the context of {manifest.context_length}")
    return Text(ids, tokenizer)
