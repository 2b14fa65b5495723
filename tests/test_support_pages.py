"""The support pages say what the family declarations say."""
from __future__ import annotations

from pathlib import Path

import pytest

from uaii import support
from uaii.frontend.family import registry

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("page", ["huggingface_support.md", "gguf_support.md"])
def test_the_page_is_current(page: str) -> None:
    text = (DOCS / page).read_text("utf-8")
    assert support.MARK.search(text)
    assert support.filled(text) == text, "run: python -m uaii.support docs"


def test_every_registered_name_is_on_a_page() -> None:
    by_type, by_class, by_gguf = registry()
    hf, gguf = ((DOCS / p).read_text("utf-8") for p in ("huggingface_support.md", "gguf_support.md"))
    assert all(f"`{name}`" in hf for name in (*by_type, *by_class))
    assert all(f"`{name}`" in gguf for name in by_gguf)


def test_services_without_weights_are_named() -> None:
    text = (DOCS / "huggingface_support.md").read_text("utf-8")
    assert "ChatGPT" in text and "Gemini" in text and "any decoder" not in text
