"""The operations, one class each: fields, then the typing rule. Importing this package registers them all."""
from __future__ import annotations

from uaii.ir.ops.attention import Attention, Positions, Rope, RopeScaling, ScaleRows, SplitHeads, Temperature
from uaii.ir.ops.elementwise import ACTS, Activation, Add, Clamp, Gated, Mul, Scale, Softcap
from uaii.ir.ops.kernels import (
    BlockSpread,
    BlockSum,
    DynamicFreqs,
    EmbeddingNBits,
    Gqa,
    Halves,
    KeyLengths,
    LengthFreqs,
    MatMulNBits,
    MergeHeads,
    RopeTable,
    Rotary,
    SkipRmsNorm,
    TotalLength,
)
from uaii.ir.ops.linear import Embedding, LastPositions, LayerNorm, Linear, RmsNorm

__all__ = [
    "ACTS", "Activation", "Add", "Attention", "BlockSpread", "BlockSum", "Clamp", "DynamicFreqs", "Embedding", "EmbeddingNBits",
    "Gated", "Gqa", "Halves", "KeyLengths", "LastPositions", "LayerNorm", "LengthFreqs", "Linear", "MatMulNBits", "MergeHeads",
    "Mul", "Positions", "RmsNorm", "Rope", "RopeScaling", "RopeTable", "Rotary", "Scale", "ScaleRows", "SkipRmsNorm", "Softcap",
    "SplitHeads", "Temperature", "TotalLength",
]
