"""Ids of texts in which control tokens are plain text, from the model that is loaded already."""
from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property
from typing import Any

import tokenizers

from uaii.frontend.tokenizer.literal import hidden_name


class Plain:
    """A tokenizer whose special tokens, and those in `also`, are met under their hidden names alone, at the same ids.

    A second tokenizer shares the loaded model; only the added tokens are its own, so it is made in milliseconds. Where the
    model itself can build one of those tokens out of text, `exact` makes the tokenizer whose model cannot.
    """

    def __init__(self, made: tokenizers.Tokenizer, nonce: str, also: Collection[int], exact: Callable[[], tokenizers.Tokenizer]
                 ) -> None:
        self._made, self._make_exact = made, exact
        model: Any = made.model
        added = made.get_added_tokens_decoder()
        unk = getattr(model, "unk_token", None)
        hidden = {id_ for id_, token in added.items() if (token.special or id_ in also) and token.content != unk}
        inside = {text: i for id_ in hidden if (i := model.token_to_id(text := added[id_].content)) is not None}
        names = {id_: hidden_name(id_, nonce) if id_ in hidden else token.content for id_, token in added.items()}
        self._shared = tokenizers.Tokenizer(model)
        for step in ("normalizer", "pre_tokenizer"):
            if getattr(made, step) is not None:
                setattr(self._shared, step, getattr(made, step))
        self._shared.add_tokens([_named(token, names[id_]) for id_, token in added.items()])
        here = {self._shared.token_to_id(name): id_ for id_, name in names.items()}
        taken = any(i != id_ and model.id_to_token(i) is not None for i, id_ in here.items())
        self._ids, self._inside = here, set(inside.values())
        self._shares = not taken and not _builds(model, list(inside))

    def encode(self, text: str, *, add_special: bool) -> list[int]:
        """The ids of a clean text; `add_special` adds what the tokenizer adds. Raises what the library raises."""
        if self._shares:
            found = self._shared.encode(text, add_special_tokens=False)
            if self._inside.isdisjoint(found.ids):
                whole = self._made.post_process(found) if add_special else found
                return [i if put else self._ids.get(i, i) for i, put in zip(whole.ids, whole.special_tokens_mask, strict=True)]
        return list(self._exact.encode(text, add_special_tokens=add_special).ids)

    @cached_property
    def _exact(self) -> tokenizers.Tokenizer:
        return self._make_exact()


def _builds(model: Any, texts: list[str]) -> bool:
    """Whether merges may lead to one of these tokens of the model, so that it is met even where it is not the result."""
    if not isinstance(model, tokenizers.models.BPE):
        return False
    if model.dropout or model.continuing_subword_prefix or model.end_of_word_suffix:
        return True
    if not model.ignore_merges:
        return any([token.value for token in model.tokenize(text)] == [text] for text in texts)
    return any(len(text) == 1 or any(model.token_to_id(text[:i]) is not None and model.token_to_id(text[i:]) is not None
                                     for i in range(1, len(text))) for text in texts)


def _named(token: tokenizers.AddedToken, name: str) -> tokenizers.AddedToken:
    return tokenizers.AddedToken(name, single_word=token.single_word, lstrip=token.lstrip, rstrip=token.rstrip,
                                 normalized=token.normalized, special=token.special)
