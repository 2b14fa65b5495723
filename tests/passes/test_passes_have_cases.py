"""Parity of the pass list with its cases: every pass rewrites something, every reason to decline is seen once."""
from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from pathlib import Path

import pytest
import uir

import uaii.passes
from uaii.passes.base import GraphPass, Pass

CASES = [c for f in sorted(Path(__file__).parent.parent.rglob("*.uir")) for c in uir.read_cases(f)]
MODULES = [importlib.import_module(f"uaii.passes.{m.name}") for m in pkgutil.iter_modules(uaii.passes.__path__)]
CLASSES = {c.__name__: c for m in MODULES for c in vars(m).values()
           if isinstance(c, type) and issubclass(c, Pass | GraphPass) and c not in (Pass, GraphPass)}
TARGET_SAYS = r".+ (needs|takes|has no) .+"  # ir/target.py words every refusal with one of these


def reasons() -> list[tuple[str, str]]:
    """(pass name, pattern) for every Why(...) that a pass can reach, through functions of its module too."""
    found = []
    for module in MODULES:
        assert module.__file__ is not None
        tree = ast.parse(Path(module.__file__).read_text())
        functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name in CLASSES:
                called = {n.func.id for n in ast.walk(node) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
                for body in (node, *(functions[f] for f in called & set(functions))):
                    found += [(CLASSES[node.name].name, pattern(n.args[0])) for n in ast.walk(body)
                              if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "Why"]
    return found


def pattern(arg: ast.expr) -> str:
    match arg:
        case ast.Constant(value=str(text)):
            return re.escape(text)
        case ast.JoinedStr(values=parts):
            return "".join(re.escape(p.value) if isinstance(p, ast.Constant) else ".+" for p in parts)
        case _:
            return TARGET_SAYS


def last(case: uir.Case) -> str:
    return case.passes[-1].partition("(")[0]


def test_every_pass_is_in_the_pipeline() -> None:
    assert {c.name for c in CLASSES.values()} == set(uir.PASSES)


@pytest.mark.parametrize("name", sorted(uir.PASSES))
def test_every_pass_has_a_case_that_becomes(name: str) -> None:
    mine = [c for c in CASES if c.kind == "becomes" and last(c) == name]
    assert mine
    if name != "check-capabilities":
        assert any(c.before.split() != c.after.split() for c in mine), f"{name} never changes anything"


def test_the_reasons_are_found() -> None:
    assert len(reasons()) >= 20


@pytest.mark.parametrize(("name", "says"), reasons())
def test_every_reason_to_decline_has_a_case(name: str, says: str) -> None:
    assert any(c.kind == "declines" and last(c) == name and re.fullmatch(says, c.arg) for c in CASES)


def test_every_case_has_a_name_of_its_own() -> None:
    names = [c.name for c in CASES]
    assert sorted(names) == sorted(set(names))
