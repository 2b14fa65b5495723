"""How far logits are from those of the reference, and how far they may be."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

Array = Any
DIFFERENCE = 1e-3  # largest |difference| of a logit over the range of its position's logits: sums in f32 in another order
NEAR_TIE = 1e-4    # of that range: two best tokens that are closer do not fix one
NOISE = 2          # times the noise that rounding the same activations gives the reference
F32, INT8, EXPERTS = "f32", "int8", "f32, experts int8"
TIED = {F32: 1e-5, INT8: 0.1, EXPERTS: 0.1}  # of the spread of a token's scores: what rounding can make of a choice of experts


@dataclass(frozen=True)
class Distance:
    """One run beside the reference.

    `difference` as DIFFERENCE says, over the `judged` positions. `noise` is the spread of the differences over that of the logits
    (of the median position where experts are chosen), `expected` what it is when the reference rounds the same activations to
    int8, 0 where none are. `kl` is the mean of KL(reference || run) in nats over all, `same_best` the share of positions with
    the same best token, `moved` those where the reference's best is no near-tie and the run has another. `position` and `token`
    are the place of the largest difference, `reference` and `logit` the two values there.
    """

    run: str
    activations: str
    difference: float
    noise: float
    kl: float
    same_best: float
    moved: list[int]
    position: int
    token: int
    reference: float
    logit: float
    judged: int
    expected: float = 0.0

    @property
    def bound(self) -> str:
        """What is demanded, in words."""
        if self.expected:
            return f"noise <= {NOISE * self.expected:.2g}, {NOISE} x the reference's in int8"
        return f"difference <= {DIFFERENCE:g}, same best token"

    @property
    def ok(self) -> bool:
        """Whether the bound holds; NaN never does."""
        return self.noise <= NOISE * self.expected if self.expected else self.difference <= DIFFERENCE and not self.moved

    def record(self) -> dict[str, Any]:
        """The JSON form; what is not finite is null."""
        said = {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in asdict(self).items()}
        return said | {"bound": self.bound, "ok": self.ok}


def distance(run: str, activations: str, ours: Array, want: Array, tied: int | None = None) -> Distance:
    """Logits [S,V] of a run beside the reference's. `tied` is the position of the first choice of experts that rounding can
    move, None without one: from there on another expert may be right too. So f32 is judged before it, unless it is the very
    first, and int8 by its median position."""
    largest, squares, kls, same, moved = [], [], [], 0, []
    worst = (-1.0, 0, 0)
    for at, (a, b) in enumerate(zip(ours, want, strict=True)):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        off, span = np.abs(a - b), float(np.ptp(b)) or 1.0
        at_most = float(off.max()) / span if np.isfinite(a).all() else np.inf
        if at_most > worst[0]:
            worst = at_most, at, int(np.argmax(np.where(np.isfinite(off), off, np.inf)))
        largest.append(at_most)
        squares.append(float((a - b).var() / (b.var() or 1.0)))
        kls.append(_kl(b, a))
        best, second = np.partition(b, -2)[-2:][::-1] if b.size > 1 else (b[0], -np.inf)
        same += int(a.argmax() == b.argmax())
        if a.argmax() != b.argmax() and (best - second) / span > NEAR_TIE:
            moved.append(at)
    judged = len(largest) if not tied or activations != F32 else tied
    mean = np.median if tied is not None else np.mean
    return Distance(run, activations, max(largest[:judged]), float(np.sqrt(mean(squares))), float(np.mean(kls)),
                    same / len(largest), [at for at in moved if at < judged], worst[1], worst[2],
                    float(want[worst[1]][worst[2]]), float(ours[worst[1]][worst[2]]), judged)


def difference(ours: Array, want: Array) -> float:
    """Largest |difference| of a row over the range of the wanted row; infinite where something is not finite."""
    parts = [float(np.abs(a - b).max() / (np.ptp(b) or 1.0)) for a, b in zip(ours, want, strict=True)]
    return max(parts) if np.isfinite(parts).all() else np.inf


def _kl(p: Array, q: Array) -> float:
    """KL(softmax p || softmax q) in nats."""
    logs = [x - x.max() - np.log(np.exp(x - x.max()).sum()) for x in (p, q)]
    return float((np.exp(logs[0]) * (logs[0] - logs[1])).sum())


@dataclass(frozen=True)
class Choices:
    """The choices of experts in a text: how many, and at which positions the last that was taken leads the next by less than
    rounding can make of it, for each kind of activations."""

    count: int
    tied: dict[str, list[int]]

    def first(self, activations: str) -> int | None:
        """The first position whose choice rounding can move."""
        return min(self.tied[activations], default=None)


def choices(margins: Sequence[Array]) -> Choices:
    """From the margins [S] of each layer, relative to the spread of the scores."""
    return Choices(sum(len(m) for m in margins), {
        kind: sorted(int(at) for m in margins for at in np.flatnonzero(m < least)) for kind, least in TIED.items()})
