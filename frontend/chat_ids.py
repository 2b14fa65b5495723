"""Conversations as token ids: the template writes the control tokens; in a message they are plain text.

Every control token inside a message is replaced by a private mark before the template runs. If the template then writes the
same text with the marks in it, each control token left is the template's own. Pieces of control tokens that only the template
would join (two parts of one message, say) are found by writing the conversation once more without their punctuation.
"""
from __future__ import annotations

import datetime
import re
import secrets
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from uaii.frontend.chat import choose, render
from uaii.frontend.tokenizer.text import Tokenizer, clean
from uaii.ir.diag import Diagnostic, Unsupported
from uaii.ir.loc import File

Given = dict[str, Any]
Write = Callable[[Given], str]
Span = tuple[int, int, int]
PROBES = ([{"role": "user", "content": "x"}],
          [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}, {"role": "user", "content": "z"}])
PRIVATE = 0xF0000  # private-use characters have no letter case, are no white space, and no filter rewrites them
SIGN = re.compile(r"[^\w\s-]")


@dataclass(frozen=True)
class Encoded:
    """A rendered conversation and its ids; `found` are the control tokens that stood in messages, once each."""

    ids: list[int]
    text: str
    found: tuple[str, ...] = ()


class Conversations:
    """Encodes conversations by a tokenizer and its chat templates; no BOS or EOS is added to what the template writes."""

    def __init__(self, tok: Tokenizer) -> None:
        self.tok = tok
        self._turns: dict[str, frozenset[int]] = {}

    def render(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """The text, equal to transformers' apply_chat_template; options and errors as `chat.render`."""
        return self._writer(self._template(options))({"messages": messages, **options})

    def encode(self, messages: Sequence[Mapping[str, Any]], *, parse_special: bool = False, **options: Any) -> Encoded:
        """The text and its ids; without a control token in the messages they are those of transformers.

        Control tokens in the messages, tools and other options are plain text unless `parse_special`. Those are the special
        tokens and, but for what the assistant said, other added tokens that the template writes around turns. Raises
        Unsupported K536 when the template reads such a token in a message, or makes one from it; else as `chat.render`.
        """
        template = self._template(options)
        write = self._writer(template)
        options = {"date": datetime.datetime.now()} | options  # one time for every writing
        given: Given = _mapped({"messages": list(messages), **options}, clean)
        text = write(given)
        marks = _Marks(self.tok, self._turn_tokens(template or "", write))
        marked = marks.put(given)
        found = tuple(dict.fromkeys(marks.texts))
        if parse_special:
            return Encoded(self.tok.encode(text, add_special=False), text, found)
        over = write(marked) if found else text
        if marks.back(over) != text:
            raise _refused(f"the chat template looks for {_listed(found)} in a message")
        controls = marks.controls(over)
        bare = marks.bare(given)
        if bare != marked and _ids(marks.controls(_unsigned(write, bare))) != _ids(controls):
            raise _refused("the chat template makes a control token from pieces of a message")
        ids = self._plainly(over, controls, marks) if found else self.tok.encode(text, add_special=False)
        return Encoded(ids, text, found)

    def _template(self, options: Mapping[str, Any]) -> str | None:
        return choose(self.tok.files.template, self.tok.files.templates, options.get("tools"))

    def _writer(self, template: str | None) -> Write:
        bos, eos = self.tok.bos_token, self.tok.eos_token
        return lambda given: render(template, bos_token=bos, eos_token=eos, **given)

    def _plainly(self, over: str, controls: list[Span], marks: _Marks) -> list[int]:
        """Ids of the text in which the template's control tokens are spelt in secret, and the messages' own as they are."""
        for id_, start, end in reversed(controls):
            over = over[:start] + self.tok.hidden(id_) + over[end:]
        ids = self.tok.encode_hidden(marks.back(over), marks.turns)
        if [i for i in ids if i in marks.every] != _ids(controls):
            raise _refused(f"the tokenizer cannot read {_listed(marks.texts)} as plain text here")
        return ids

    def _turn_tokens(self, template: str, write: Write) -> frozenset[int]:
        """Added tokens that are not special, as DeepSeek's <｜User｜>, which the template writes in a plain conversation."""
        if template not in self._turns:
            texts = []
            for probe in PROBES:
                try:
                    texts.append(write({"messages": probe}))
                except Diagnostic:
                    continue  # a template that takes no such conversation is read as it stands
            written = {i for text in texts or [template] for i in _ids(self.tok.spans(text))}
            self._turns[template] = frozenset(i for i in written - self.tok.special_ids if SIGN.search(self.tok.added[i]))
        return self._turns[template]


class _Marks:
    """Private marks in place of control tokens; `texts` are what they stand for, in order."""

    def __init__(self, tok: Tokenizer, turns: frozenset[int]) -> None:
        self.tok, self.turns, self.every = tok, turns, tok.special_ids | turns
        self.texts: list[str] = []
        nonce = "".join(chr(PRIVATE + secrets.randbelow(4096)) for _ in range(8))
        self._head = chr(PRIVATE + 0x2000) + nonce
        self._mark = re.compile(re.escape(self._head) + "(.)(.)", re.S)
        self._signs = set(SIGN.findall("".join(tok.added[i] for i in self.every)))

    def controls(self, text: str) -> list[Span]:
        """The control tokens that parsing finds in a text."""
        return [span for span in self.tok.spans(text) if span[0] in self.every]

    def put(self, given: Given) -> Given:
        """The same conversation with a mark in place of each control token."""
        return self._over(given, str)

    def bare(self, given: Given) -> Given:
        """The same with marks, and outside of whole tokens without the punctuation that control tokens are made of."""
        return self._over(given, lambda text: SIGN.sub(self._unsigned, text))

    def back(self, text: str) -> str:
        """The text with what the marks stand for."""
        return self._mark.sub(lambda found: self.texts[(ord(found[1]) - PRIVATE) * 4096 + ord(found[2]) - PRIVATE], text)

    def _over(self, given: Given, other: Callable[[str], str]) -> Given:
        self.texts = []
        made = {name: _mapped(value, partial(self._marked, controls=self.every, other=other))
                for name, value in given.items() if name != "messages"}
        said = (self.tok.special_ids if isinstance(m, Mapping) and m.get("role") == "assistant" else self.every
                for m in given["messages"])
        made["messages"] = [_mapped(m, partial(self._marked, controls=c, other=other))
                            for m, c in zip(given["messages"], said, strict=True)]
        return made

    def _marked(self, text: str, controls: frozenset[int], other: Callable[[str], str]) -> str:
        pieces, at = [], 0
        for id_, start, end in self.tok.spans(text):
            pieces += [other(text[at:start]), self._new(text[start:end]) if id_ in controls else text[start:end]]
            at = end
        return "".join(pieces) + other(text[at:])

    def _new(self, text: str) -> str:
        self.texts.append(text)
        high, low = divmod(len(self.texts) - 1, 4096)
        return f"{self._head}{chr(PRIVATE + high)}{chr(PRIVATE + low)}"

    def _unsigned(self, found: re.Match[str]) -> str:
        return chr(PRIVATE + 0x3000) if self._signs & {found[0], *unicodedata.normalize("NFKC", found[0])} else found[0]


def _unsigned(write: Write, bare: Given) -> str:
    try:
        return write(bare)
    except Diagnostic as err:
        raise _refused("the chat template refuses this conversation without the punctuation of control tokens, so that they "
                       f"cannot be told apart ({err.says})") from None


def _ids(spans: list[Span]) -> list[int]:
    return [id_ for id_, *_ in spans]


def _mapped(value: Any, each: Callable[[str], str]) -> Any:
    match value:
        case str():
            return each(value)
        case Mapping():
            return {_mapped(key, each): _mapped(item, each) for key, item in value.items()}
        case list() | tuple():
            return [_mapped(item, each) for item in value]
    return value


def _refused(what: str) -> Unsupported:
    return Unsupported("K536", what, File("chat template"), why="a message must not be able to end its own turn",
                       hint="change the message, or parse control tokens in messages (--parse-special, parse_special=True)")


def _listed(texts: Sequence[str]) -> str:
    return ", ".join(map(repr, dict.fromkeys(texts)))
