"""Mixtures of experts: routing as standard ops around the kernel that runs the chosen experts."""
from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from uaii.backends.onnx.emit import MS, Body, Emit, emits
from uaii.ir import ops
from uaii.ir.core import Value
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


@emits(ops.ExpertBranches)
def expert_branches(op: ops.ExpertBranches, e: Emit) -> None:
    """A branch gathers the tokens that chose its expert; what they get is added up in one scatter."""
    experts, inner = op.fc1.type.sizes[0], op.fc1.type.sizes[1] // 2
    features, r = int(op.x.type.shape[-1]), ops.Routed(**routing(op))
    stacks = {"fc1": op.fc1, "fc1_scales": op.fc1_scales, "fc1_offsets": op.fc1_offsets, "fc1_bias": op.fc1_bias, "fc2": op.fc2,
              "fc2_scales": op.fc2_scales, "fc2_offsets": op.fc2_offsets, "fc2_bias": op.fc2_bias}
    stored = {n: v for n, v in stacks.items() if v is not None}
    operands: dict[str, Value | str | None] = {"x": op.x, "logits": op.logits, "correction": op.correction}
    operands |= {f"{n}_{i}": e.element(v, i) for i in range(experts) for n, v in stored.items()}
    level = 4 if op.int8_activations else 1
    sizes = {"fc1": (features, 2 * inner, op.bits1, op.block1), "fc2": (inner, features, op.bits2, op.block2)}

    def product(b: Body, x: str, name: str, i: int) -> str:
        k, n, bits, block = sizes[name]
        bias = f"{name}_bias_{i}" if f"{name}_bias" in stored else None
        y = b.node("MatMulNBits", x, f"{name}_{i}", f"{name}_scales_{i}", None, None, bias, domain=MS, K=k, N=n, bits=bits,
                   block_size=block, accuracy_level=level)
        if f"{name}_offsets" not in stored:
            return y
        blocks = b.node("Reshape", x, b.const(np.array([-1, k // block, block], np.int64)))
        sums = b.node("ReduceSum", blocks, b.const(np.array([-1], np.int64)), keepdims=0)
        return b.node("Add", y, b.node("FusedMatMul", sums, f"{name}_offsets_{i}", domain=MS, transB=1))

    def branch(i: int) -> onnx.GraphProto:
        b = Body(prefix=f"e{i}_")
        column = b.node("Reshape", f"share_{i}", b.const(np.array([-1], np.int64)))
        rows = b.node("Squeeze", b.node("NonZero", column), b.const(np.array([0], np.int64)))
        both = product(b, b.node("Gather", "tokens", rows), "fc1", i)
        b.node("Split", both, outputs=(f"e{i}_gate", f"e{i}_up"), axis=-1, num_outputs=2)
        y = product(b, _gated(b, f"e{i}_gate", f"e{i}_up", r), "fc2", i)
        return b.graph(b.node("Mul", y, b.node("Gather", f"share_{i}", rows)))

    def body(b: Body) -> None:
        b.node("Reshape", "x", b.const(np.array([-1, features], np.int64)), outputs="tokens")
        flat = b.node("Reshape", "logits", b.const(np.array([-1, experts], np.int64)))
        weights = shares(b, flat, "correction" if op.correction is not None else None, r, experts)
        most = b.node("ReduceMax", weights, b.const(np.array([0], np.int64)), keepdims=0)
        b.node("Split", b.node("Greater", most, b.const(np.float32(0))), outputs=tuple(f"chosen_{i}" for i in range(experts)),
               axis=0, num_outputs=experts)
        b.node("Split", weights, outputs=tuple(f"share_{i}" for i in range(experts)), axis=1, num_outputs=experts)
        for i in range(experts):
            idle = Body(prefix=f"n{i}_")
            b.node("If", f"chosen_{i}", outputs=f"y_{i}", then_branch=branch(i),
                   else_branch=idle.graph(idle.const(np.zeros((0, features), np.float32))))
        pairs = b.node("NonZero", b.node("Transpose", weights))  # by expert, as the branches' results stand
        rows = b.node("Reshape", b.node("Gather", pairs, b.const(np.int64(1))), b.const(np.array([-1, 1], np.int64)))
        nothing = b.node("ConstantOfShape", b.node("Shape", "tokens"), value=numpy_helper.from_array(np.zeros(1, np.float32)))
        found = b.node("Concat", *(f"y_{i}" for i in range(experts)), axis=0)
        total = b.node("ScatterND", nothing, rows, found, reduction="add")
        b.node("Reshape", total, b.node("Shape", "x"), outputs="y")

    e.call("MixtureOfExperts", operands, ("y",), body)


def _gated(b: Body, gate: str, up: str, r: ops.Routed) -> str:
    """(up + beta) * gate * sigmoid(alpha * gate), both limited."""
    if r.limit:
        high, low = b.const(np.float32(r.limit)), b.const(np.float32(-r.limit))
        gate, up = b.node("Min", gate, high), b.node("Clip", up, low, high)
    if r.beta:
        up = b.node("Add", up, b.const(np.float32(r.beta)))
    return b.node("Mul", b.node("QuickGelu", gate, domain=MS, alpha=r.alpha), up)


def shares(b: Body, logits: str, correction: str | None, r: ops.Routed, experts: int) -> str:
    """The weight of every expert [n,X], 0 for those not chosen, from logits [n,X]."""
    last = b.const(np.array([-1], np.int64))
    scores = b.node("Softmax", logits, axis=-1) if r.scores == "softmax" else b.node("Sigmoid", logits)
    biased = scores if correction is None else b.node("Add", scores, correction)
    if r.groups > 1:
        biased = _best_groups(b, biased, r, experts)
    chosen = "choice"
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
