"""From logits to a token: the usual transforms in NumPy, in the order of transformers.

Order: repetition, presence and frequency penalty; temperature; top-k; top-p; min-p; one draw. (llama.cpp applies its
temperature last, so the same top-p keeps more there when the temperature is below 1.) Temperature 0 is greedy: the
penalties, then the highest logit, the lowest id among equals.
"""
from __future__ import annotations

import math
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from uaii.ir.diag import Usage

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
HEAD = 1024  # tokens sorted at first for top-p; a wider nucleus sorts the whole vocabulary


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen; the defaults choose greedily.

    temperature >= 0 (0 = greedy); top_k >= 0 (0 = off); 0 < top_p <= 1; 0 <= min_p <= 1; repetition_penalty > 0 over
    prompt and output (1 = off; transformers' rule: positive logits are divided, negative multiplied);
    presence_penalty and frequency_penalty in -2..2 over the output alone (OpenAI's rule); seed >= 0, or None for a
    fresh one. Raises Usage S620 for anything else.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        _real("temperature", self.temperature, 0.0, math.inf)
        _whole("top_k", self.top_k)
        _real("top_p", self.top_p, 0.0, 1.0, above=True)
        _real("min_p", self.min_p, 0.0, 1.0)
        _real("repetition_penalty", self.repetition_penalty, 0.0, math.inf, above=True)
        _real("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _real("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if self.seed is not None:
            _whole("seed", self.seed)


def _real(name: str, value: Any, low: float, high: float, *, above: bool = False) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not low <= value <= high or (above and value == low):
        limits = f"above {low:g}" if above else f"at least {low:g}"
        limits += f" and at most {high:g}" if math.isfinite(high) else ""
        raise Usage("S620", f"{name} must be a number {limits}, not {value!r}")


def _whole(name: str, value: Any) -> None:
    if type(value) is not int or value < 0:
        raise Usage("S620", f"{name} must be a whole number of at least 0, not {value!r}")


def penalise(logits: Floats, seen: Indices, output: Indices, sampling: Sampling) -> Floats:
    """Logits [V] after the three penalties; `seen` [V] counts tokens of prompt and output, `output` [V] of output.

    Repetition: Keskar et al. 2019 (CTRL), each seen token once. Presence and frequency: the OpenAI API's
    `logit - presence * (count > 0) - frequency * count`.
    """
    out = logits.copy()
    if sampling.repetition_penalty != 1.0:
        at = np.flatnonzero(seen)
        out[at] = np.where(out[at] < 0, out[at] * sampling.repetition_penalty, out[at] / sampling.repetition_penalty)
    if sampling.presence_penalty or sampling.frequency_penalty:
        out -= sampling.presence_penalty * (output > 0) + sampling.frequency_penalty * output
    return out


def candidates(logits: Floats, sampling: Sampling) -> tuple[Indices, Floats]:
    """Token ids, ascending, that may be drawn and their probabilities, from penalised logits [V]; temperature > 0.

    Top-k keeps ties with the k-th. Top-p keeps the fewest most likely tokens that together reach p, of those top-k
    left. Min-p keeps tokens of at least min_p times the likeliest one's probability. The likeliest always stays.
    """
    scaled = (logits - logits.max()) / sampling.temperature
    ids: Indices = np.arange(logits.size)
    if 0 < sampling.top_k < logits.size:
        ids = np.flatnonzero(logits >= np.partition(logits, -sampling.top_k)[-sampling.top_k])
    weights = np.exp(scaled[ids])
    if sampling.top_p < 1.0:
        nucleus = _nucleus(weights, sampling.top_p)
        ids, weights = ids[nucleus], weights[nucleus]
    strong = weights >= sampling.min_p
    return ids[strong], weights[strong] / weights[strong].sum()


def _nucleus(weights: Floats, top_p: float) -> Indices:
    """Places, ascending, of the fewest largest weights whose share reaches top_p; equal weights by place."""
    wanted = top_p * weights.sum()
    places: Indices = np.arange(weights.size)
    if weights.size > HEAD:
        head = np.flatnonzero(weights >= np.partition(weights, -HEAD)[-HEAD])
        places = head if weights[head].sum() >= wanted else places
    order = places[np.argsort(-weights[places], kind="stable")]
    before = np.concatenate(([0.0], np.cumsum(weights[order])[:-1]))
    return np.sort(order[(before < wanted) | (np.arange(order.size) == 0)])


class Sampler:
    """Chooses one sequence's tokens and remembers them for the penalties.

    `seed` is the seed in use, drawn from the system when none was given: the same seed, prompt and parameters choose
    the same tokens. One draw of numpy's default generator per sampled token.
    """

    def __init__(self, sampling: Sampling, prompt: Iterable[int], vocab_size: int) -> None:
        self.sampling = sampling
        self.seed = secrets.randbits(32) if sampling.seed is None else sampling.seed
        self._plain = sampling == Sampling(seed=sampling.seed)
        self._rng = np.random.default_rng(self.seed)
        self._output: Indices = np.zeros(vocab_size, np.int64)
        self._seen: Indices = np.bincount(np.fromiter(prompt, np.int64), minlength=vocab_size)

    def choose(self, logits: npt.NDArray[np.float32]) -> int:
        """The next token id from raw logits [V]; it is remembered as output."""
        if self._plain:
            return int(logits.argmax())
        scores = penalise(logits.astype(np.float64), self._seen, self._output, self.sampling)
        token = int(scores.argmax()) if self.sampling.temperature == 0 else self._draw(scores)
        self._seen[token] += 1
        self._output[token] += 1
        return token

    def _draw(self, scores: Floats) -> int:
        ids, shares = candidates(scores, self.sampling)
        reach = np.cumsum(shares)
        place = int(np.searchsorted(reach, self._rng.random() * reach[-1], side="right"))
        return int(ids[min(place, ids.size - 1)])


def log_probabilities(logits: npt.NDArray[np.float32]) -> Floats:
    """Natural logarithms of the model's own probabilities, from raw logits [V]: before penalties and temperature."""
    shifted = logits.astype(np.float64) - float(logits.max())
    out: Floats = shifted - np.log(np.exp(shifted).sum())
    return out
