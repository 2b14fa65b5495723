"""The performance page says what the records beside it say."""
from __future__ import annotations

import json
from pathlib import Path

from uaii.cli.measuring.page import filled
from uaii.support import MARK

DOCS = Path(__file__).parent.parent / "docs"


def test_the_page_is_current() -> None:
    text = (DOCS / "performance.md").read_text("utf-8")
    assert filled(DOCS) == text, "run: python -m uaii.cli.measuring.page docs"
    assert {m[2] for m in MARK.finditer(text)} == {p.stem for p in (DOCS / "performance").glob("*.json")}


def test_a_page_follows_its_record(tmp_path: Path) -> None:
    (tmp_path / "performance").mkdir()
    first = next((DOCS / "performance").glob("*.json"))
    record = json.loads(first.read_text("utf-8"))
    record["summary"][0]["decode"]["tokens_per_second"] = 12345.6
    (tmp_path / "performance" / "changed.json").write_text(json.dumps(record))
    (tmp_path / "performance.md").write_text("before\n<!-- generated: changed -->\nold\n<!-- end -->\nafter\n")
    made = filled(tmp_path)
    assert "12345.6" in made and "old" not in made and made.startswith("before\n") and made.endswith("<!-- end -->\nafter\n")


def test_every_entry_of_a_record_is_described() -> None:
    text = (DOCS / "performance.md").read_text("utf-8")
    record = json.loads(next((DOCS / "performance").glob("*.json")).read_text("utf-8"))
    names = {*record, *record["summary"][0], *record["rows"][0], *record["machine"], *record["model"], *record["ratios"][0]}
    assert {n for n in names if f"`{n}`" not in text} == set()
