"""What a run of llama.cpp leaves behind, small enough to keep, and the comparison with it."""
from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from llamacpp_files import File
from parity import GOLDENS, GREEDY, kept_ids

__all__ = ["GREEDY", "decided", "difference", "golden", "made", "path"]

MARGIN = 2e-3  # of the range: ten times llama.cpp's noise, which its GELU table makes 1e-4


def path(family: str) -> Path:
    """The family's file; one entry per GGUF file."""
    return GOLDENS / "llamacpp" / f"{family}.json"


def decided(rows: np.ndarray) -> bool:
    """Whether the best logit of every row leads by more than noise."""
    best = np.sort(rows, axis=-1)
    return bool(((best[:, -1] - best[:, -2]) / np.ptp(rows, axis=-1)).min() > MARGIN)


def kept_positions(prompt: int) -> list[int]:
    """Rows that a golden keeps: middle and last of the prompt, and the last of its continuation."""
    return [prompt // 2, prompt - 1, prompt + GREEDY - 2]


def made(file: File, rows: np.ndarray, tokens: list[int]) -> dict[str, Any]:
    """The entry for a file: seed, fingerprint, tokens, and per kept position the range, the best ids, and logits."""
    kept = []
    for at in kept_positions(len(file.prompt())):
        best = np.argsort(rows[at], kind="stable")[:-3:-1].tolist()
        kept.append([_short(np.ptp(rows[at])), best, [_short(x) for x in rows[at][kept_ids(rows.shape[1], best)]]])
    return {"seed": file.case.seed, "of": file.fingerprint(), "tokens": tokens, "rows": kept}


def _short(x: Any) -> float:
    return float(f"{x:.5g}")


@cache
def _entries(family: str) -> dict[str, Any]:
    return json.loads(path(family).read_text()) if path(family).exists() else {}


def golden(family: str, file: File) -> tuple[File, dict[str, Any]]:
    """The file with the golden's seed, and the golden; it must have been made from this very file."""
    entry = _entries(family).get(file.name)
    assert entry is not None, f"no golden for {family}/{file.name}: run tests/goldens/llamacpp.py {family}"
    seeded = file.seeded(entry["seed"])
    assert entry["of"] == seeded.fingerprint(), f"{family}/{file.name} has changed: run tests/goldens/llamacpp.py {family}"
    return seeded, entry


def difference(rows: np.ndarray, prompt: int, entry: dict[str, Any]) -> float:
    """Largest |difference| from the golden over the range; rows [S+G-1,V] of the prompt and its continuation."""
    worst = 0.0
    for at, (span, best, logits) in zip(kept_positions(prompt), entry["rows"], strict=True):
        off = np.abs(rows[at][kept_ids(rows.shape[1], best)] - np.array(logits))
        worst = max(worst, float(off.max()) / span)
    return worst
