"""The operations, one class each: fields, then the typing rule. Importing this package registers them all."""
from __future__ import annotations

from uaii.ir.ops.attention import Attention, LatentAttention, Positions, Rope, RopeScaling, ScaleRows, SplitHeads, Temperature
from uaii.ir.ops.elementwise import ACTS, Activation, Add, Clamp, Gated, Mul, RowGate, Scale, Softcap
from uaii.ir.ops.experts import ExpertBranches, ExpertKernel, MixtureOfExperts, Routed
from uaii.ir.ops.kernels import (
    BlockSpread,
    BlockSum,
    Cut,
    DynamicFreqs,
    EmbeddingNBits,
    Gqa,
    Halves,
    KeyLengths,
    LatentGqa,
    LengthFreqs,
    MatMulNBits,
    MergeHeads,
    RopeTable,
    Rotary,
    SkipRmsNorm,
    TotalLength,
)
from uaii.ir.ops.linear import Embedding, LastPositions, LayerNorm, Linear, RmsNorm
from uaii.ir.ops.rows import FlatRows, Gemm, GridRows, GridShape

__all__ = [
    "ACTS", "Activation", "Add", "Attention", "BlockSpread", "BlockSum", "Clamp", "Cut", "DynamicFreqs", "Embedding",
    "EmbeddingNBits", "ExpertBranches", "ExpertKernel", "FlatRows", "Gated", "Gemm", "Gqa", "GridRows", "GridShape", "Halves",
    "KeyLengths", "LastPositions", "LatentAttention", "LatentGqa", "LayerNorm", "LengthFreqs", "Linear", "MatMulNBits",
    "MergeHeads", "MixtureOfExperts", "Mul", "Positions", "RmsNorm", "Rope", "RopeScaling", "RopeTable", "Rotary", "Routed",
    "RowGate", "Scale", "ScaleRows", "SkipRmsNorm", "Softcap", "SplitHeads", "Temperature", "TotalLength",
]
