"""Who may import whom: the arrow points one way, and a room is only ever `uaii.<room>`."""
from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAY = {"ir": set(), "passes": {"ir"}, "frontend": {"ir"}, "backends": {"ir"}, "cli": {"ir", "passes", "frontend", "backends"}}
SOURCES = [p for room in (*MAY, "uaii") for p in sorted((ROOT / room).rglob("*.py"))
           if room != "uaii" or p.relative_to(ROOT / room).parts[0] not in MAY]


def imports(path: Path) -> Iterator[str]:
    """Full dotted names; `from uaii import ir` gives uaii.ir."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{a.name}" for a in node.names)


def offences(path: Path, room: str) -> list[str]:
    found = []
    for name in imports(path):
        parts = name.split(".")
        if parts[0] in MAY:
            found.append(f"import {name}: a second module beside uaii.{name}")
        if parts[0] != "uaii" or room == "uaii":
            continue
        to = parts[1] if len(parts) > 1 else ""
        if to in MAY and to != room and to not in MAY[room]:
            found.append(f"{room} imports {to}")
        if to not in MAY and room != "cli":
            found.append(f"{room} imports {name}, which is above it")
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_downward(path: Path) -> None:
    assert offences(path, path.relative_to(ROOT).parts[0]) == []


def test_the_rule_sees_what_it_forbids(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    for line, room in (("import ir", "cli"), ("from ir.core import Op", "ir"), ("from uaii.frontend import hf", "backends"),
                       ("import uaii.passes.base", "ir"), ("from uaii import passes", "frontend"),
                       ("def f():\n    from uaii.cli.main import main", "passes"), ("import uaii", "backends"),
                       ("from uaii.compiler import compile_model", "ir")):
        bad.write_text(line)
        assert offences(bad, room), line
    bad.write_text("from uaii.ir.core import Op\nimport numpy\nfrom uaii.passes import base")
    assert offences(bad, "passes") == [] == offences(bad, "cli")


def test_every_room_is_here_and_linked() -> None:
    assert SOURCES and {p.relative_to(ROOT).parts[0] for p in SOURCES} == {*MAY, "uaii"}
    for room in MAY:
        assert (ROOT / "uaii" / room).resolve() == ROOT / room


def test_no_test_folder_is_a_package() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []
    names = [p.name for p in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
