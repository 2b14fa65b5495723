"""Mixtures of experts: routing as data, and the gated MLPs that a token is sent through."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from uaii.ir.core import Op, Value
from uaii.ir.types import BLOCKS, FLOATS, Tensor

SCORES = ("softmax", "sigmoid")
GROUP_SCORES = ("max", "top2")


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Routed:
    """How tokens choose experts, and what an expert does with its two halves.

    `scores` of all experts come from the logits. With `groups` > 1, experts stand in that many runs; the `groups_used` runs
    whose best biased score ("max"), or whose two best together ("top2"), are largest stay. Of what stays, the `top_k` of
    score + correction are chosen. Their weights are their scores without the correction, divided by their sum (at least
    `floor`) if `renormalise`, times `scale`. An expert computes down((up + beta) * gate * sigmoid(alpha * gate)), gate at
    most `limit` and up within +-`limit` if it is not 0.

    Sources: Fedus et al. 2022 (softmax), DeepSeek-V3 2024 (sigmoid, correction, groups), gpt-oss (alpha, beta, limit).
    """

    top_k: int
    scores: str = "softmax"
    renormalise: bool = True
    scale: float = 1.0
    groups: int = 1
    groups_used: int = 1
    group_score: str = "max"
    floor: float = 0.0
    alpha: float = 1.0
    beta: float = 0.0
    limit: float = 0.0


def routing(op: Routed) -> dict[str, Any]:
    """The attributes that every form of the op carries over."""
    return {"top_k": op.top_k, "scores": op.scores, "renormalise": op.renormalise, "scale": op.scale, "groups": op.groups,
            "groups_used": op.groups_used, "group_score": op.group_score, "floor": op.floor, "alpha": op.alpha,
            "beta": op.beta, "limit": op.limit}


def _check(op: Op, r: Routed, experts: int, x: Value, logits: Value, correction: Value | None) -> None:
    op.need(logits.type.shape == (*x.type.shape[:-1], experts), f"logits are {logits.type} for {experts} experts")
    op.need(correction is None or correction.type.shape == (experts,), "the correction is one number for each expert")
    op.need(r.scores in SCORES, f"unknown scores {r.scores!r}")
    op.need(r.group_score in GROUP_SCORES, f"unknown group score {r.group_score!r}")
    op.need(0 < r.groups_used <= r.groups and experts % r.groups == 0, f"{r.groups_used} of {r.groups} groups of {experts}")
    op.need(r.group_score == "max" or r.groups == 1 or experts // r.groups > 1, "a group of one expert has no two best")
    op.need(0 < r.top_k <= experts // r.groups * r.groups_used, f"{r.top_k} of {experts} experts")
    op.need(r.limit >= 0 and r.floor >= 0, "limit and floor are not negative")


class MixtureOfExperts(Op, Routed, name="mixture_of_experts"):
    """The weighted sum of the chosen experts' outputs; see Routed.

    x [B,S,E], logits [B,S,X], gate and up [X,F,E], down [X,E,F], correction [X], gate_bias and up_bias [X,F], down_bias
    [X,E] -> [B,S,E].
    """

    x: Value
    logits: Value
    gate: Value
    up: Value
    down: Value
    correction: Value | None = None
    gate_bias: Value | None = None
    up_bias: Value | None = None
    down_bias: Value | None = None

    def infer(self) -> Tensor:
        n, f, e = self.gate.type.shape
        self.need(e == self.x.type.shape[-1] and self.up.type.shape == (n, f, e), f"gate {self.gate.type}, up {self.up.type}")
        self.need(self.down.type.shape == (n, e, f), f"down is {self.down.type}")
        stored = all(w.type.elem in (*FLOATS, *BLOCKS) for w in (self.gate, self.up, self.down))
        self.need(stored, "experts are neither floats nor blocks")
        for bias, shape in ((self.gate_bias, (n, f)), (self.up_bias, (n, f)), (self.down_bias, (n, e))):
            self.need(bias is None or bias.type.shape == shape, f"a bias is not {list(shape)}")
        self.need((self.gate_bias is None) == (self.up_bias is None), "gate and up have biases together")
        _check(self, self, int(n), self.x, self.logits, self.correction)
        return self.x.type


class ExpertKernel(Op, Routed, name="expert_kernel", stages="ort"):
    """com.microsoft MoE over f32 experts, or QMoE over packed ones: a mixture of experts whose gate and up rows alternate.

    fc1 f32 [X,2F,E] and fc2 f32 [X,E,F]; or u8 [X,2F,E*bits/8] and [X,E,F*bits/8], low bits first, around 2^(bits-1), with
    f32 scales for each `block`. fc1_bias [X,2F], fc2_bias [X,E]. `int8_activations` rounds to int8 per block.
    """

    x: Value
    logits: Value
    fc1: Value
    fc2: Value
    fc1_scales: Value | None = None
    fc2_scales: Value | None = None
    correction: Value | None = None
    fc1_bias: Value | None = None
    fc2_bias: Value | None = None
    bits: int = 32
    block: int = 0
    int8_activations: bool = False

    def infer(self) -> Tensor:
        n, rows, width = self.fc1.type.sizes
        e = self.x.type.shape[-1]
        self.need(rows % 2 == 0, f"{rows} rows do not alternate")
        if self.block:
            self.need(width * 8 == int(e) * self.bits, f"{self.fc1.type} is not {self.bits} bits for {e} features")
            self.need(self.fc1_scales is not None and self.fc2_scales is not None, "packed experts need scales")
        else:
            self.need(width == e and self.fc1_scales is None and self.fc2_scales is None, f"fc1 is {self.fc1.type}")
        inner = rows // 2
        self.need(self.fc2.type.shape == (n, e, inner * self.bits // 8 if self.block else inner), f"fc2 is {self.fc2.type}")
        _check(self, self, n, self.x, self.logits, self.correction)
        return self.x.type


class ExpertBranches(Op, Routed, name="expert_branches", stages="ort"):
    """A mixture of experts in which each expert is a branch of its own, taken when some token chose it.

    For blocks that QMoE cannot hold: those with offsets, and mixtures of types. fc1 are gate's rows, then up's: u8
    [X,2F,E/block,block*bits/8], f32 scales and offsets [X,2F,E/block], as in matmul_nbits and block_sum; fc2 alike over F.
    """

    x: Value
    logits: Value
    fc1: Value
    fc1_scales: Value
    fc2: Value
    fc2_scales: Value
    fc1_offsets: Value | None = None
    fc2_offsets: Value | None = None
    correction: Value | None = None
    fc1_bias: Value | None = None
    fc2_bias: Value | None = None
    bits1: int = 4
    block1: int = 32
    bits2: int = 4
    block2: int = 32
    int8_activations: bool = False

    def infer(self) -> Tensor:
        n, rows, blocks, width = self.fc1.type.sizes
        e = self.x.type.shape[-1]
        fits = rows % 2 == 0 and blocks * self.block1 == e and width * 8 == self.block1 * self.bits1
        self.need(fits, f"fc1 is {self.fc1.type}")
        blocks2, width2 = rows // 2 // self.block2, self.block2 * self.bits2 // 8
        self.need(self.fc2.type.shape == (n, e, blocks2, width2), f"fc2 is {self.fc2.type}")
        for v, shape in ((self.fc1_scales, (n, rows, blocks)), (self.fc1_offsets, (n, rows, blocks)),
                         (self.fc2_scales, (n, e, blocks2)), (self.fc2_offsets, (n, e, blocks2))):
            self.need(v is None or v.type == Tensor("f32", shape), f"scales or offsets are not f32{list(shape)}")
        _check(self, self, n, self.x, self.logits, self.correction)
        return self.x.type
