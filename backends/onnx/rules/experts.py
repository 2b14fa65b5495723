"""Mixtures of experts: routing as standard ops around the kernel that runs the chosen experts."""
from __future__ import annotations

import numpy as np

from uaii.backends.onnx.emit import MS, Body, Emit, emits
from uaii.ir import ops
from uaii.ir.ops.experts import routing

NEVER = np.float32(-1e30)  # a score that no choice takes, and whose exponential is 0
LEAST = np.float32(1e-37)  # the smallest weight whose logarithm is taken


@emits(ops.ExpertKernel)
def expert_kernel(op: ops.ExpertKernel, e: Emit) -> None:
    """The kernel picks the top_k of a softmax itself; where the routing is more than that, it is given the logarithms of the
    weights, which it turns back."""
    operands = {"x": op.x, "logits": op.logits, "fc1": op.fc1, "fc1_scales": op.fc1_scales, "fc2": op.fc2,
                "fc2_scales": op.fc2_scales, "correction": op.correction, "fc1_bias": op.fc1_bias, "fc2_bias": op.fc2_bias}
    has = {n: n for n, v in operands.items() if v is not None}
    experts = op.fc1.type.sizes[0]
    swiglu = {"activation_type": "swiglu", "swiglu_fusion": 1, "activation_alpha": op.alpha, "activation_beta": op.beta,
              **({"swiglu_limit": op.limit} if op.limit else {})}
    packed = {"block_size": op.block, "expert_weight_bits": op.bits, "accuracy_level": 4 if op.int8_activations else 0}
    r = ops.Routed(**routing(op))
    plain = r.scores == "softmax" and op.correction is None and r.groups == 1 and r.floor == 0.0 and r.scale == 1.0

    def body(b: Body) -> None:
        flat = b.node("Reshape", "logits", b.const(np.array([-1, experts], np.int64)))
        weights = None if plain else shares(b, flat, has.get("correction"), r, experts)
        probs = flat if weights is None else _logarithms(b, weights)
        common = {"k": r.top_k, "normalize_routing_weights": int(r.renormalise or not plain), **swiglu}
        out = "y" if weights is None else "mixed"
        if op.block:
            b.node("QMoE", "x", probs, "fc1", "fc1_scales", has.get("fc1_bias"), "fc2", "fc2_scales", has.get("fc2_bias"),
                   domain=MS, outputs=out, **common, **packed)
        else:
            b.node("MoE", "x", probs, "fc1", has.get("fc1_bias"), "fc2", has.get("fc2_bias"), domain=MS, outputs=out, **common)
        if weights is not None:
            total = b.node("ReduceSum", weights, b.const(np.array([-1], np.int64)), keepdims=1)
            shape = b.node("Shape", "x", start=0, end=2)
            each = b.node("Reshape", total, b.node("Concat", shape, b.const(np.array([1], np.int64)), axis=0))
            b.node("Mul", out, each, outputs="y")

    e.call("MixtureOfExperts", operands, ("y",), body)


def shares(b: Body, logits: str, correction: str | None, r: ops.Routed, experts: int) -> str:
    """The weight of every expert [n,X], 0 for those not chosen, from logits [n,X]."""
    last = b.const(np.array([-1], np.int64))
    scores = b.node("Softmax", logits, axis=-1) if r.scores == "softmax" else b.node("Sigmoid", logits)
    biased = scores if correction is None else b.node("Add", scores, correction)
    if r.groups > 1:
        biased = _best_groups(b, biased, r, experts)
    chosen = "chosen"
    b.node("TopK", biased, b.const(np.array([r.top_k], np.int64)), outputs=("best", chosen), axis=-1)
    weights = b.node("GatherElements", scores, chosen, axis=-1)
    if r.renormalise:
        total = b.node("ReduceSum", weights, last, keepdims=1)
        weights = b.node("Div", weights, b.node("Max", total, b.const(np.float32(r.floor))) if r.floor else total)
    if r.scale != 1.0:
        weights = b.node("Mul", weights, b.const(np.float32(r.scale)))
    nothing = b.node("Mul", logits, b.const(np.float32(0)))
    return b.node("ScatterElements", nothing, chosen, weights, axis=-1)


def _best_groups(b: Body, biased: str, r: ops.Routed, experts: int) -> str:
    """Scores [n,X], those of experts outside the best groups replaced by NEVER."""
    last = b.const(np.array([-1], np.int64))
    runs = b.node("Reshape", biased, b.const(np.array([-1, r.groups, experts // r.groups], np.int64)))
    if r.group_score == "max":
        best = b.node("ReduceMax", runs, last, keepdims=0)
    else:
        b.node("TopK", runs, b.const(np.array([2], np.int64)), outputs=("two", "where_two"), axis=-1)
        best = b.node("ReduceSum", "two", last, keepdims=0)
    b.node("TopK", best, b.const(np.array([r.groups_used], np.int64)), outputs=("kept", "where_kept"), axis=-1)
    out = b.node("Add", b.node("Mul", best, b.const(np.float32(0))), b.const(NEVER))
    zeros = b.node("Mul", "kept", b.const(np.float32(0)))
    mask = b.node("Unsqueeze", b.node("ScatterElements", out, "where_kept", zeros, axis=-1), last)
    open_ = b.node("Equal", mask, b.const(np.float32(0)))
    return b.node("Reshape", b.node("Where", open_, runs, b.const(NEVER)), b.const(np.array([-1, experts], np.int64)))


def _logarithms(b: Body, weights: str) -> str:
    """ln of weights [n,X], NEVER where a weight is 0: their softmax is the weights again, but for their sum."""
    logs = b.node("Log", b.node("Max", weights, b.const(LEAST)))
    return b.node("Where", b.node("Greater", weights, b.const(np.float32(0))), logs, b.const(NEVER))
