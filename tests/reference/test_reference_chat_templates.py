"""Chat templates live against transformers; UAII_TEMPLATE_DIR names a folder of further .jinja files to try."""
from __future__ import annotations

import os
from pathlib import Path

import pytest
from chat_cases import CONVERSATIONS, DAY, TEMPLATES, TOKENS
from chat_oracle import rendered

from uaii.frontend.chat import render
from uaii.ir.diag import Diagnostic

FILES = [path for folder in (TEMPLATES, os.environ.get("UAII_TEMPLATE_DIR")) if folder
         for path in sorted(Path(folder).glob("*.jinja"))]


@pytest.mark.reference
@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_template_gives_the_text_of_transformers(path: Path, name: str) -> None:
    (messages, tools), template = CONVERSATIONS[name], path.read_text("utf-8")
    try:
        made = render(template, messages, tools=tools, date=DAY, **TOKENS)
    except Diagnostic:
        made = None
    assert made == rendered(template, messages, tools, **TOKENS)
