"""Every GGUF architecture gives llama.cpp's logits and greedy tokens for the same file."""
from __future__ import annotations

from pathlib import Path

import llamacpp_files
import llamacpp_golden
import numpy as np
import parity
import pytest
from llamacpp_files import File

from uaii.frontend.family import registry

FILES = [pytest.param(family, file, id=f"{family}-{file.name}") for family, files in llamacpp_files.files().items()
         for file in files]


@pytest.mark.parametrize(("family", "file"), FILES)
def test_a_file_gives_llama_cpps_logits_and_tokens(family: str, file: File, tmp_path: Path) -> None:
    seeded, golden = llamacpp_golden.golden(family, file)
    model, prompt = parity.session(seeded.write(tmp_path), tmp_path / "out"), seeded.prompt()
    cache, tokens = model.cache(), list[int]()
    rows = [model.prefill(prompt, cache, keep_logits=0)]
    for _ in range(llamacpp_golden.GREEDY):
        tokens.append(int(rows[-1][-1].argmax()))
        rows.append(model.step(np.array([tokens[-1:]]), None, cache)[0])
    assert tokens == golden["tokens"]
    assert llamacpp_golden.difference(np.concatenate(rows), len(prompt), golden) <= parity.TOLERANCE


def test_every_architecture_has_files() -> None:
    written = {file.twin.arch for files in llamacpp_files.files().values() for file in files}
    assert written == set(registry()[2])


def test_goldens_are_small() -> None:
    assert sum(p.stat().st_size for p in llamacpp_golden.path("llama").parent.iterdir()) < 150_000
