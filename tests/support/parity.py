"""Compiles a tiny checkpoint, runs it, and compares logits and greedy tokens with a reference: one tolerance for all."""
from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tiny_models import Case

from uaii.backends.ort.generate import generate
from uaii.backends.ort.session import Session
from uaii.compiler import compile_model

TOLERANCE = 1e-3  # largest |logit difference| over the reference's range at that position
GREEDY = 24       # tokens
GOLDENS = Path(__file__).parent.parent / "goldens"
MARGIN = 2e-5     # of the range: a golden whose best two logits are closer does not fix a token


@dataclass(frozen=True)
class Run:
    """A prompt and its greedy continuation: logits of the prompt in one call [S,V], of each new token [G,V], and of all of
    it fed one token at a time [S+G,V]."""

    tokens: list[int]
    prefill: np.ndarray
    decode: np.ndarray
    stepwise: np.ndarray

    def rows(self) -> np.ndarray:
        """All of them, [2S+2G,V]."""
        return np.concatenate([self.prefill, self.decode, self.stepwise])


def session(checkpoint: Path, out: Path, **options: Any) -> Session:
    """The checkpoint compiled into `out` with f32 weights and opened."""
    compile_model(checkpoint, out, weights="f32", **options)
    return Session.open(out, threads=1)


def run(model: Session, prompt: Sequence[int]) -> Run:
    """Our run; the tokens come from `generate`, and every way of feeding them is computed separately."""
    tokens = generate(model, prompt, max_new_tokens=GREEDY, ignore_eos=True).run().tokens
    cache = model.cache()
    prefill = model.prefill(prompt, cache, keep_logits=0)
    decode = [model.step(np.array([[t]]), None, cache)[0, -1] for t in tokens]
    cache = model.cache()
    stepwise = [model.step(np.array([[t]]), None, cache)[0, -1] for t in [*prompt, *tokens]]
    return Run(tokens, prefill, np.array(decode), np.array(stepwise))


def difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Largest |difference| of a row relative to the reference row's range."""
    assert ours.shape == theirs.shape
    return float((np.abs(ours - theirs).max(-1) / np.ptp(theirs, axis=-1)).max())


def compare(ours: Run, theirs: Run) -> float:
    """The difference over prefill, decode and stepwise; the same greedy tokens are demanded first."""
    assert ours.tokens == theirs.tokens
    return difference(ours.rows(), theirs.rows())


# --- goldens: what a run of the reference leaves behind, small enough to keep

def fingerprint(case: Case) -> str:
    """Of the config, the tensors and the prompts: a golden of another checkpoint is recognised."""
    digest = hashlib.sha256(json.dumps([case.config, case.prompts()], sort_keys=True).encode())
    for name, x in case.tensors().items():
        digest.update(name.encode() + x.tobytes())
    return digest.hexdigest()[:16]


def golden_path(family: str) -> Path:
    """The family's file; one entry per case."""
    return GOLDENS / f"{family}.json"


def golden(family: str, case: Case) -> dict[str, Any]:
    """The stored entry of a case; it must have been made from this very checkpoint."""
    entry = json.loads(golden_path(family).read_text()).get(case.name)
    assert entry is not None, f"no golden for {family}/{case.name}: run tests/goldens/make.py {family}"
    assert entry["of"] == fingerprint(case), f"{family}/{case.name} has changed: run tests/goldens/make.py {family}"
    return entry


def kept_positions(prompt: int) -> list[int]:
    """Rows of Run.rows() that a golden keeps: middle and last of the prompt and of decode, and the last of stepwise."""
    return [prompt // 2, prompt - 1, prompt + GREEDY // 2, prompt + GREEDY - 1, 2 * (prompt + GREEDY) - 1]


def kept_ids(vocab: int, best: Sequence[int]) -> list[int]:
    """Vocabulary entries that a golden keeps of a row: the best, and six spread evenly."""
    return [*best, *np.linspace(0, vocab - 1, 6).astype(int).tolist()]


def to_golden(case: Case, runs: Sequence[Run]) -> dict[str, Any]:
    """The entry for a case. Raises ValueError where a greedy token is a near tie, which would not be reproducible."""
    entries = []
    for theirs in runs:
        best = np.sort(np.concatenate([theirs.prefill[-1:], theirs.decode]), axis=-1)
        if ((best[:, -1] - best[:, -2]) / np.ptp(best, axis=-1)).min() < MARGIN:
            raise ValueError(f"{case.name}: a greedy token is a near tie; choose another seed")
        rows, kept = theirs.rows(), []
        for at in kept_positions(len(theirs.prefill)):
            top = np.argsort(rows[at], kind="stable")[:-4:-1].tolist()
            logits = rows[at][kept_ids(rows.shape[1], top)]
            kept.append([float(f"{np.ptp(rows[at]):.5g}"), top, [float(f"{x:.5g}") for x in logits]])
        entries.append({"tokens": theirs.tokens, "rows": kept})
    return {"of": fingerprint(case), "runs": entries}


def compare_with_golden(ours: Run, theirs: dict[str, Any]) -> float:
    """As `compare`, over the positions and ids that were kept."""
    assert ours.tokens == theirs["tokens"]
    rows, worst = ours.rows(), 0.0
    for at, (span, best, logits) in zip(kept_positions(len(ours.prefill)), theirs["rows"], strict=True):
        off = np.abs(rows[at][kept_ids(rows.shape[1], best)] - np.array(logits))
        worst = max(worst, float(off.max()) / span)
    return worst
