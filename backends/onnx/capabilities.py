"""The kernels of each target. Every CPU row is proved by a test that runs it."""
from __future__ import annotations

from typing import Any

from uaii.ir import ops
from uaii.ir.diag import Usage
from uaii.ir.target import CALL, Kernel, Limit, Target


def _head(op: Any) -> int:
    return int(op.past_k.type.shape[3])


def _turned(op: Any) -> int:
    """How many features of a head the kernel rotates."""
    return 2 * int(op.cos.type.shape[-1]) if op.cos is not None else 0


GQA_LIMITS = (
    Limit("a rotation width that is a multiple of 16 and at most the head",
          lambda op: _turned(op) % 16 == 0 and _turned(op) <= _head(op)),
    Limit("a head size that is a multiple of 16 to rotate", lambda op: not _turned(op) or _head(op) % 16 == 0),
    Limit("a head size that is a multiple of 8", lambda op: _head(op) % 8 == 0),
)
BRANCHES = (Limit("blocks of 32 values for 4 bits", lambda op: (4, 16) not in ((op.bits1, op.block1), (op.bits2, op.block2))),)
ROWS = (Limit("2 or 3 dimensions", lambda op: op.a.type.rank in (2, 3)),)


def _nbits(kernel: str, bits: int, block: int, int8: bool, cost: float) -> Kernel:
    legal = {"bits": (bits,), "block": (block,), "int8_activations": (int8,)}
    return Kernel(ops.MatMulNBits, kernel, attrs=legal, cost=cost)


def _experts(bits: int, block: int) -> Kernel:
    legal = {"block": (block,), "bits": (bits,), "int8_activations": (True,)}
    return Kernel(ops.ExpertKernel, "QMoE(int8)", attrs=legal)


# Costs: time of one M=1 product of 2048 x 5632 against f32 MatMul (docs/architecture.md says how they were measured).
CPU = Target("cpu", (
    Kernel(ops.Embedding, "Gather"),
    Kernel(ops.EmbeddingNBits, "GatherBlockQuantized", attrs={"bits": (4, 8), "block": (16, 32)}),
    Kernel(ops.Linear, "FusedMatMul"),
    _nbits("MatMulNBits(int8)", 4, 32, int8=True, cost=0.30),
    _nbits("MatMulNBits(int8)", 8, 32, int8=True, cost=0.35),
    _nbits("MatMulNBits(int8)", 8, 16, int8=True, cost=0.40),
    _nbits("MatMulNBits(f32)", 4, 32, int8=False, cost=1.12),
    Kernel(ops.BlockSum, "Reshape, ReduceSum", call=2 * CALL), Kernel(ops.BlockSpread, "Tile"),
    Kernel(ops.RmsNorm, "SimplifiedLayerNormalization", attrs={"offset": (0.0,)}),
    Kernel(ops.SkipRmsNorm, "SkipSimplifiedLayerNormalization", limits=ROWS),
    Kernel(ops.LayerNorm, "LayerNormalization", attrs={"offset": (0.0,)}),
    Kernel(ops.LastPositions, "Slice"),
    Kernel(ops.Add, "Add"), Kernel(ops.Mul, "Mul"), Kernel(ops.Scale, "Mul"), Kernel(ops.Softcap, "Tanh"),
    Kernel(ops.Clamp, "Clip"), Kernel(ops.Activation, "QuickGelu/Gelu/Relu"),
    Kernel(ops.Gated, "QuickGelu/Gelu/Relu, Mul"), Kernel(ops.RowGate, "Sigmoid, Mul"),
    Kernel(ops.FlatRows, "Reshape"), Kernel(ops.GridShape, "Shape, Concat"), Kernel(ops.GridRows, "Reshape"),
    Kernel(ops.Gemm, "Gemm"),
    Kernel(ops.Halves, "Split"), Kernel(ops.Cut, "Split"), Kernel(ops.SplitHeads, "Reshape"), Kernel(ops.MergeHeads, "Reshape"),
    Kernel(ops.Positions, "CumSum"), Kernel(ops.Temperature, "Div, Log"), Kernel(ops.ScaleRows, "Mul"),
    Kernel(ops.DynamicFreqs, "Pow"), Kernel(ops.LengthFreqs, "Gather"),
    Kernel(ops.RopeTable, "Cos, Sin"), Kernel(ops.Rotary, "RotaryEmbedding"), Kernel(ops.KeyLengths, "ReduceSum"),
    Kernel(ops.TotalLength, "Shape"),
    Kernel(ops.Gqa, "GroupQueryAttention", limits=GQA_LIMITS),
    Kernel(ops.LatentGqa, "GroupQueryAttention, If", limits=(
        Limit("a latent row whose width is a multiple of 8", lambda op: int(op.past.type.shape[3]) % 8 == 0),)),
    Kernel(ops.ExpertKernel, "MoE", attrs={"block": (0,)}),
    Kernel(ops.ExpertBranches, "If, MatMulNBits(int8)", limits=BRANCHES,
           attrs={"block1": (16, 32), "block2": (16, 32), "int8_activations": (True,)}),
    _experts(4, 32), _experts(8, 32), _experts(8, 16),
))
TARGETS = {t.name: t for t in (CPU,)}


def target(name: str) -> Target:
    """The target of that name. Raises Usage U021."""
    if name not in TARGETS:
        raise Usage("U021", f"--target {name} is not one of {', '.join(TARGETS)}")
    return TARGETS[name]
