"""The kernels of each target. Every CPU row is proved by a test that runs it; CUDA rows are from the published schemas."""
from __future__ import annotations

from typing import Any

from uaii.ir import ops
from uaii.ir.diag import Usage
from uaii.ir.target import Kernel, Limit, Target


def _table_width(op: Any) -> int:
    return int(op.cos.type.shape[-1])


GQA_LIMITS = (
    Limit("a rotation width that is a multiple of 16 and at most the head",
          lambda op: op.cos is None or (_table_width(op) % 8 == 0 and 2 * _table_width(op) <= int(op.past_k.type.shape[3]))),
    Limit("a head size that is a multiple of 16 to rotate", lambda op: op.cos is None or int(op.past_k.type.shape[3]) % 16 == 0),
    Limit("a head size that is a multiple of 8", lambda op: int(op.past_k.type.shape[3]) % 8 == 0),
)
# Costs: time of one M=1 product of 2048 x 5632 against f32 MatMul (docs/architecture.md says how they were measured).
CPU = Target("cpu", (
    Kernel(ops.Embedding, "Gather"),
    Kernel(ops.EmbeddingNBits, "GatherBlockQuantized", attrs={"bits": (8,), "block": (32,)}),
    Kernel(ops.Linear, "FusedMatMul"),
    Kernel(ops.MatMulNBits, "MatMulNBits(int8)", attrs={"bits": (4,), "block": (32,), "int8_activations": (True,)}, cost=0.11),
    Kernel(ops.MatMulNBits, "MatMulNBits(int8)", attrs={"bits": (8,), "block": (32,), "int8_activations": (True,)}, cost=0.20),
    Kernel(ops.MatMulNBits, "MatMulNBits(f32)", attrs={"bits": (4,), "block": (32,), "int8_activations": (False,)}, cost=0.48),
    Kernel(ops.BlockSum, "ReduceSum"),
    Kernel(ops.RmsNorm, "SimplifiedLayerNormalization", attrs={"offset": (0.0,)}),
    Kernel(ops.SkipRmsNorm, "SkipSimplifiedLayerNormalization",
           limits=(Limit("2 or 3 dimensions", lambda op: op.a.type.rank in (2, 3)),)),
    Kernel(ops.LayerNorm, "LayerNormalization", attrs={"offset": (0.0,)}),
    Kernel(ops.LastPositions, "Slice"),
    Kernel(ops.Add, "Add"), Kernel(ops.Mul, "Mul"), Kernel(ops.Scale, "Mul"), Kernel(ops.Softcap, "Tanh"),
    Kernel(ops.Clamp, "Clip"), Kernel(ops.Activation, "QuickGelu/Gelu/Relu"), Kernel(ops.Gated, "QuickGelu/Gelu/Relu, Mul"),
    Kernel(ops.Halves, "Split"), Kernel(ops.SplitHeads, "Reshape"), Kernel(ops.MergeHeads, "Reshape"),
    Kernel(ops.Positions, "CumSum"), Kernel(ops.DynamicFreqs, "Pow"), Kernel(ops.RopeTable, "Cos, Sin"),
    Kernel(ops.Rotary, "RotaryEmbedding"), Kernel(ops.KeyLengths, "ReduceSum"), Kernel(ops.TotalLength, "Shape"),
    Kernel(ops.Gqa, "GroupQueryAttention", limits=GQA_LIMITS),
))
TARGETS = {t.name: t for t in (CPU,)}


def target(name: str) -> Target:
    """The target of that name. Raises Usage U021."""
    if name not in TARGETS:
        raise Usage("U021", f"--target {name} is not one of {', '.join(TARGETS)}")
    return TARGETS[name]
