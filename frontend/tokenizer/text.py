"""The tokenizer at run time: text to ids and back."""
from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from uaii.frontend.checkpoint import TokenizerFiles
from uaii.frontend.tokenizer.literal import without_special
from uaii.frontend.tokenizer.parts import Json
from uaii.frontend.tokenizer.stream import TextStream, decoder_for, token_bytes
from uaii.ir.diag import Malformed
from uaii.ir.loc import File

__all__ = ["TextStream", "Tokenizer", "library_tokenizer"]


def library_tokenizer(text: str, file: str) -> tokenizers.Tokenizer:
    """The library's tokenizer for the text of a tokenizer.json, neither truncating nor padding. Raises Malformed K507."""
    try:
        made = tokenizers.Tokenizer.from_str(text)
    except Exception as err:  # the library raises bare Exception, and its panics are BaseException subclasses of it
        raise Malformed("K507", f"tokenizer.json does not load: {err}", File(file),
                        hint="restore the file from its source") from None
    made.no_truncation()
    made.no_padding()
    return made


class Tokenizer:
    """Encodes and decodes by one tokenizer.json, equal to the `tokenizers` library on the same file."""

    def __init__(self, files: TokenizerFiles) -> None:
        """Raises Malformed K507 when the tokenizer.json does not load."""
        self.files = files
        self._made = library_tokenizer(files.tokenizer_json, files.source)
        self._special = {id_ for id_, token in self._made.get_added_tokens_decoder().items() if token.special}
        ids = self._made.get_vocab(with_added_tokens=True).values()
        self.vocab_size = max(ids, default=-1) + 1

    @classmethod
    def from_artifact(cls, folder: Path) -> Tokenizer:
        """The tokenizer of an artifact folder. Raises Malformed K507 or K512."""
        from uaii.frontend.tokenizer.folder import from_artifact
        return cls(from_artifact(Path(folder)))

    @property
    def bos_token(self) -> str:
        """The text of BOS, empty when there is none."""
        return self._text(self.files.bos_id)

    @property
    def eos_token(self) -> str:
        """The text of EOS, empty when there is none."""
        return self._text(self.files.eos_id)

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Ids of a text. `add_special` adds what the tokenizer adds (BOS, EOS).

        Without `parse_special` control tokens in the text are plain text; added tokens that are not special still match.
        Broken surrogates are read as U+FFFD.
        """
        made = self._made if parse_special else self._literal
        clean = text.encode("utf-8", "surrogateescape" if _escaped(text) else "replace").decode("utf-8", "replace")
        try:
            return list(made.encode(clean, add_special_tokens=add_special).ids)
        except Exception as err:
            raise Malformed("K508", f"the tokenizer cannot encode the text: {err}", File(self.files.source)) from None

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of ids; ids outside the vocabulary say nothing, special tokens neither when `skip_special`."""
        return str(self._made.decode([i for i in ids if 0 <= i < self.vocab_size], skip_special_tokens=skip_special))

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """What each id says by itself, special tokens included; part of a character shows as U+FFFD."""
        return [self._piece(i) for i in ids]

    def stream(self, *, skip_special: bool = True, after: Iterable[int] = ()) -> TextStream:
        """An incremental decoder, which goes on from the ids in `after`."""
        hidden = self._special if skip_special else set[int]()

        def text_of(id_: int) -> str | None:
            return None if id_ in hidden or not 0 <= id_ < self.vocab_size else self._made.id_to_token(id_)

        return TextStream(text_of, decoder_for(self._spec["decoder"], self._joined), after)

    def specials_in(self, text: str) -> list[str]:
        """The control tokens that parsing finds in a text, in order: what a user's text could smuggle in."""
        return [self._text(i) for i in self.encode(text, add_special=False) if i in self._special]

    @cached_property
    def _spec(self) -> Json:
        spec: Json = {k: v for k, v in json.loads(self.files.tokenizer_json).items() if k != "model"}
        return {"decoder": None} | spec

    @cached_property
    def _literal(self) -> tokenizers.Tokenizer:
        return library_tokenizer(without_special(self.files.tokenizer_json), self.files.source)

    def _joined(self, tokens: list[str]) -> str:
        decoder: Any = self._made.decoder
        return str(decoder.decode(tokens)) if decoder is not None else " ".join(tokens)

    def _piece(self, id_: int) -> str:
        text = self._made.id_to_token(id_) if 0 <= id_ < self.vocab_size else None
        if text is None:
            return ""
        if (self._spec["decoder"] or {}).get("type") == "ByteLevel":
            return token_bytes(text).decode("utf-8", "replace")
        return text.replace("▁", " ") if id_ not in self._special else text

    def _text(self, id_: int | None) -> str:
        return (self._made.id_to_token(id_) if id_ is not None else None) or ""


def _escaped(text: str) -> bool:
    return all("\udc80" <= c <= "\udcff" for c in text if "\ud800" <= c <= "\udfff")
