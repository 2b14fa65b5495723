"""The first session in docs/ is what happens."""
from __future__ import annotations

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "docs" / "transcript.py"


def test_the_page_is_what_the_script_makes(smollm2: Path) -> None:
    spec = importlib.util.spec_from_file_location("transcript", SCRIPT)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    assert made.transcript(smollm2) == made.PAGE.read_text("utf-8"), "run: python docs/transcript.py"
