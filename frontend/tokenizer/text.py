"""The tokenizer at run time: text to ids and back."""
from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import tokenizers

from uaii.frontend.checkpoint import TokenizerFiles
from uaii.frontend.tokenizer.literal import hidden_name, without_special
from uaii.frontend.tokenizer.parts import Json
from uaii.frontend.tokenizer.plain import Plain
from uaii.frontend.tokenizer.stream import TextStream, decoder_for, token_bytes
from uaii.ir.diag import Diagnostic, Malformed
from uaii.ir.loc import File

__all__ = ["TextStream", "Tokenizer", "clean", "library_tokenizer"]


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
        added = self._made.get_added_tokens_decoder()
        self.added = {id_: token.content for id_, token in added.items()}
        self._special = {id_ for id_, token in added.items() if token.special}
        self._nonce = secrets.token_hex(8)
        self._plain = lru_cache(maxsize=4)(self._without)
        ids = self._made.get_vocab(with_added_tokens=True).values()
        self.vocab_size = max(ids, default=-1) + 1

    @classmethod
    def from_artifact(cls, folder: Path) -> Tokenizer:
        """The tokenizer of an artifact folder. Raises Malformed K507 or K512."""
        from uaii.frontend.tokenizer.folder import from_artifact
        return cls(from_artifact(Path(folder)))

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The control tokens; the unknown token is none, as any text can hold it."""
        return frozenset(self._special - {self._spec["unk"]})

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
        if parse_special:
            return list(self._encoded(text, add_special).ids)
        return self._plainly(text, frozenset(), add_special)

    def spans(self, text: str) -> list[tuple[int, int, int]]:
        """The added tokens that parsing finds in a clean text: id, start and end, without the white space that some swallow."""
        made, found = self._encoded(text, add_special=False), []
        for id_, (start, end) in zip(made.ids, made.offsets, strict=True):
            if id_ in self.added:
                at = text.find(self.added[id_], start, end)
                found.append((id_, at, at + len(self.added[id_])) if at >= 0 else (id_, start, end))
        return found

    def encode_hidden(self, text: str, also: frozenset[int]) -> list[int]:
        """Ids of a text in which control tokens, and those in `also`, are plain text unless `hidden` spells them."""
        return self._plainly(text, also, add_special=False)

    def hidden(self, id_: int) -> str:
        """How to spell a control token for `encode_hidden`."""
        return hidden_name(id_, self._nonce)

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

    @cached_property
    def _spec(self) -> Json:
        model, decoder = self._made.model, self._made.decoder
        if isinstance(model, tokenizers.models.Unigram):  # the one whose unknown token only its file tells
            unk = json.loads(self.files.tokenizer_json)["model"].get("unk_id")
        else:
            unk = self._made.token_to_id(name) if (name := getattr(model, "unk_token", None)) else None
        return {"decoder": json.loads(decoder.__getstate__()) if decoder is not None else None, "unk": unk}

    def _without(self, also: frozenset[int]) -> Plain:
        return Plain(self._made, self._nonce, also, lambda: library_tokenizer(
            without_special(self.files.tokenizer_json, self._nonce, also), self.files.source))

    def _encoded(self, text: str, add_special: bool) -> tokenizers.Encoding:
        try:
            return self._made.encode(clean(text), add_special_tokens=add_special)
        except Exception as err:
            raise self._failed(err) from None

    def _plainly(self, text: str, also: frozenset[int], add_special: bool) -> list[int]:
        plain = self._plain(also)
        try:
            return plain.encode(clean(text), add_special=add_special)
        except Diagnostic:
            raise
        except Exception as err:
            raise self._failed(err) from None

    def _failed(self, err: Exception) -> Malformed:
        return Malformed("K508", f"the tokenizer cannot encode the text: {err}", File(self.files.source))

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


def clean(text: str) -> str:
    """A text without broken surrogates: bytes that Python escaped are read as UTF-8, the rest becomes U+FFFD."""
    return text.encode("utf-8", "surrogateescape" if _escaped(text) else "replace").decode("utf-8", "replace")


def _escaped(text: str) -> bool:
    return all("\udc80" <= c <= "\udcff" for c in text if "\ud800" <= c <= "\udfff")
