"""Tokens, names, types and literals of the text form, and the error that names a line."""
from __future__ import annotations

import json
import math
import re
from typing import Any

from uaii.ir import loc as L
from uaii.ir.diag import Malformed
from uaii.ir.types import ELEMS, Tensor

TOKEN = re.compile(r'\s*(?:(?P<str>"(?:[^"\\]|\\.)*")|(?P<num>-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.]))|'
                   r'(?P<name>[%@!]?[A-Za-z_0-9][\w./+-]*)|(?P<punct>[\[\](){}=:,])|(?P<bad>\S))')


class Reader:
    """Walks over the tokens of a text. Every mistake is a Malformed X001 with the line it stands on."""

    def __init__(self, text: str) -> None:
        found = [(m.group(m.lastgroup or 0), m.start(m.lastgroup or 0)) for m in TOKEN.finditer(text)]
        self.tokens, self.text, self.i = found, text, 0

    def fail(self, says: str, ahead: int = 0) -> Malformed:
        """The error at the token taken last, or `ahead` of it."""
        i = min(max(self.i - 1 + ahead, 0), len(self.tokens) - 1)
        line = self.text.count("\n", 0, self.tokens[i][1] if self.tokens else 0) + 1
        return Malformed("X001", says, L.File("<ir>", f"line {line}"), notes=[self.text.split("\n")[line - 1].strip()])

    def peek(self) -> str:
        return self.tokens[self.i][0] if self.i < len(self.tokens) else ""

    def next(self) -> str:
        if self.i >= len(self.tokens):
            raise self.fail("the text ends too early")
        self.i += 1
        return self.tokens[self.i - 1][0]

    def take(self, tok: str) -> bool:
        if self.peek() == tok:
            self.i += 1
            return True
        return False

    def want(self, tok: str) -> None:
        if not self.take(tok):
            raise self.fail(f"expected {tok!r}, found {self.peek()!r}", 1)

    def word(self, sigil: str = "") -> str:
        """A name, with its sigil taken off."""
        tok = self.next()
        if not re.fullmatch(sigil + r"[A-Za-z_0-9][\w./+-]*", tok):
            raise self.fail(f"expected a name{sigil and ' that begins with ' + sigil}, found {tok!r}")
        return tok.removeprefix(sigil)

    def type(self) -> Tensor:
        elem = self.next()
        if elem not in ELEMS:
            raise self.fail(f"unknown element type {elem!r}")
        self.want("[")
        shape: list[int | str] = []
        while not self.take("]"):
            tok = self.next()
            shape.append(int(tok) if tok.isdigit() else tok)
            self.take(",")
        return Tensor(elem, tuple(shape))

    def literal(self) -> Any:
        if self.take("["):
            items: list[Any] = []
            while not self.take("]"):
                items.append(self.literal())
                self.take(",")
            return tuple(items)
        tok = self.next()
        if tok[0] == '"':
            return json.loads(tok)
        if re.fullmatch(r"-?\d+", tok):
            return int(tok)
        if re.fullmatch(r"-?\d.*", tok):
            if math.isinf(float(tok)):
                raise self.fail(f"{tok} is no finite number")
            return float(tok)
        return {"True": True, "False": False, "None": None}.get(tok, tok)
