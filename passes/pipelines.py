"""The passes, in order, stage by stage."""
from __future__ import annotations

from collections.abc import Sequence

from uaii.ir.diag import Usage
from uaii.ir.target import Target
from uaii.passes.base import AnyPass
from uaii.passes.check_capabilities import CheckCapabilities
from uaii.passes.enter_core import EnterCore
from uaii.passes.flatten_rows import FlattenRows, FuseOffsets
from uaii.passes.fold_norm_offset import FoldNormOffset
from uaii.passes.fold_rope import FoldRope
from uaii.passes.fuse_projections import FuseGateUp, FuseQkv
from uaii.passes.fuse_skip_norm import FuseSkipNorm
from uaii.passes.lower_attention import FoldHeads, FuseRope, LowerAttention, LowerRope
from uaii.passes.lower_experts import BranchExperts, LowerExperts, LowerLatentAttention, PackExperts
from uaii.passes.merge_duplicates import MergeDuplicates
from uaii.passes.pack_weights import Dequantise, DequantiseEmbedding, PackEmbedding, PackLinear
from uaii.passes.quantise_weights import QuantiseWeights
from uaii.passes.share_tied import ShareTied
from uaii.passes.widen_weights import WidenWeights

BITS = {"int8": 8, "int4": 4}  # what floats are rounded to
WEIGHTS = ("auto", "f32", *BITS)


def to_core(context: int) -> list[AnyPass]:
    """model -> core. `context` is the longest text that the artifact is for."""
    return [FoldRope(context), FoldNormOffset(), EnterCore()]


def to_ort(target: Target, context: int, weights: str = "auto") -> list[AnyPass]:
    """core -> ort. `context` bounds the rotation tables; `weights` is one of WEIGHTS. Raises Usage U020."""
    if weights not in WEIGHTS:
        raise Usage("U020", f"--weights {weights} is not one of {', '.join(WEIGHTS)}")
    packing: Sequence[AnyPass] = [
        PackLinear(target), PackEmbedding(), PackExperts(target), BranchExperts(target)] if weights != "f32" else []
    rounding: Sequence[AnyPass] = [QuantiseWeights(BITS[weights])] if weights in BITS else []
    return [*rounding, LowerAttention(context), LowerLatentAttention(), FuseRope(target, context), LowerRope(), FoldHeads(),
            FuseQkv(), FuseGateUp(), *packing, Dequantise(), DequantiseEmbedding(), LowerExperts(), WidenWeights(),
            FuseSkipNorm(), MergeDuplicates(), FlattenRows(), FuseOffsets(), ShareTied(), CheckCapabilities(target)]


def pipeline(target: Target, context: int, weights: str = "auto") -> list[AnyPass]:
    """model -> ort."""
    return [*to_core(context), *to_ort(target, context, weights)]
