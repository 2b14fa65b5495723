"""Token ids to text, one id at a time: the pieces together are the decoded whole, byte for byte."""
from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from uaii.frontend.tokenizer.parts import BYTES, Json

VALUE = {symbol: byte for byte, symbol in enumerate(BYTES)}
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Decoder(Protocol):
    """Text of tokens as they come; `end` gives what was held back."""

    def token(self, text: str) -> str: ...

    def end(self) -> str: ...


def token_bytes(text: str) -> bytes:
    """The bytes of a byte-level token; a text with any character outside the byte alphabet stands for itself."""
    try:
        return bytes(VALUE[c] for c in text)
    except KeyError:
        return text.encode()


class ByteLevel:
    """Byte-level BPE: an unfinished character waits for its other bytes; broken ones become U+FFFD."""

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def token(self, text: str) -> str:
        return self._utf8.decode(token_bytes(text))

    def end(self) -> str:
        return self._utf8.decode(b"", final=True)


class Spaced:
    """SentencePiece: ▁ is a space, the first of the text is dropped when `strip`, a run of byte tokens is one text.

    A run waits until it is over, as one broken byte makes U+FFFD of every byte in the run (the library's ByteFallback).
    """

    def __init__(self, strip: bool) -> None:
        self._run = bytearray()
        self._strip = strip

    def token(self, text: str) -> str:
        if byte := BYTE_TOKEN.fullmatch(text):
            self._run.append(int(byte[1], 16))
            return ""
        return self._out(self._ended() + text.replace("▁", " "))

    def end(self) -> str:
        return self._out(self._ended())

    def _ended(self) -> str:
        run, self._run = bytes(self._run), bytearray()
        try:
            return run.decode()
        except UnicodeDecodeError:
            return "\ufffd" * len(run)

    def _out(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text


class Whole:
    """Any other decoder: nothing is known about its parts, so the text comes at the end."""

    def __init__(self, decode: Callable[[list[str]], str]) -> None:
        self._tokens: list[str] = []
        self._decode = decode

    def token(self, text: str) -> str:
        self._tokens.append(text)
        return ""

    def end(self) -> str:
        tokens, self._tokens = self._tokens, []
        return self._decode(tokens)


def decoder_for(spec: Json | None, decode: Callable[[list[str]], str]) -> Decoder:
    """The incremental form of a tokenizer.json's decoder; `decode` joins tokens the library's own way."""
    match spec:
        case {"type": "ByteLevel"}:
            return ByteLevel()
        case {"type": "Sequence", "decoders": [*steps]} if (strip := _spaced(steps)) is not None:
            return Spaced(strip)
    return Whole(decode)


def _spaced(steps: list[Any]) -> bool | None:
    match steps:
        case [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
              *rest]:
            if not rest:
                return False
            if rest == [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]:
                return True
    return None


class TextStream:
    """Feed ids one at a time; feed and finish together return what decoding all of them at once returns.

    `text_of` gives a token's text, None for ids that say nothing (outside the vocabulary, or special when those are
    hidden). Ids in `after` went before and are not repeated: the text goes on from there. Cost is linear in the ids.
    """

    def __init__(self, text_of: Callable[[int], str | None], decoder: Decoder, after: Iterable[int] = ()) -> None:
        self._text_of, self._decoder = text_of, decoder
        for id_ in after:
            self.feed(id_)

    def feed(self, id: int) -> str:
        """The text that this id completes; empty while a character is unfinished."""
        text = self._text_of(id)
        return self._decoder.token(text) if text is not None else ""

    def finish(self) -> str:
        """What was held back; an unfinished character becomes U+FFFD."""
        return self._decoder.end()
