"""Every error code is explained in docs/errors.md, and every explanation is of a code that exists."""
from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROOMS = ("backends", "cli", "frontend", "ir", "passes", "uaii")
CODE = re.compile(r"[A-Z]\d{3}")
HEADING = re.compile(r"^## (\S+)[^\S\n]*$", re.M)
KINDS = {"Diagnostic", "Unsupported", "Malformed", "Usage", "Internal"}


def sources() -> list[Path]:
    return [p for room in ROOMS for p in sorted((ROOT / room).rglob("*.py"))
            if room != "uaii" or p.relative_to(ROOT / room).parts[0] not in ROOMS]


def used() -> dict[str, str]:
    """Code to a place that uses it: a whole string of a capital and three digits, wherever it stands."""
    found = {}
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
                codes = [text] if CODE.fullmatch(text) else re.findall(r"error\[([A-Z]\d{3})\]", text)
                found |= {c: f"{path.relative_to(ROOT)}:{node.lineno}" for c in codes}
    return found


def documented() -> list[str]:
    return HEADING.findall((ROOT / "docs" / "errors.md").read_text("utf-8"))


def test_codes_and_headings_are_the_same() -> None:
    codes, headings = used(), set(documented())
    assert {c: at for c, at in codes.items() if c not in headings} == {}, "not in docs/errors.md"
    assert headings - set(codes) == set(), "explained, but no such error is left"
    assert len(codes) > 100


def test_a_code_is_explained_once() -> None:
    assert [c for c, n in Counter(documented()).items() if n > 1] == []


def test_every_diagnostic_is_made_with_a_code() -> None:
    """The first argument is a code, or a variable that holds one; never a sentence."""
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS and node.args:
                first = node.args[0]
                assert not isinstance(first, ast.JoinedStr), f"{path}:{node.lineno}"
                if isinstance(first, ast.Constant):
                    assert CODE.fullmatch(first.value), f"{path}:{node.lineno}: {first.value!r}"


def test_every_explanation_says_something() -> None:
    parts = HEADING.split((ROOT / "docs" / "errors.md").read_text("utf-8"))[1:]
    assert [code for code, text in zip(parts[::2], parts[1::2], strict=True) if len(text.split()) < 5] == []
