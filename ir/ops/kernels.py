"""Operations of the ort stage: what onnxruntime kernels compute, and the small glue around them."""
from __future__ import annotations

from uaii.ir.core import Op, Value
from uaii.ir.types import FLOATS, Tensor


class SkipRmsNorm(Op, name="skip_rms_norm", stages="ort"):
    """(rms_norm(a + b), a + b) in one step."""

    a: Value
    b: Value
    weight: Value
    eps: float

    def infer(self) -> tuple[Tensor, ...]:
        self.need(self.a.type == self.b.type, f"{self.a.type} + {self.b.type}")
        return self.a.type, self.a.type


class MatMulNBits(Op, name="matmul_nbits", stages="ort"):
    """y[n] = sum_k x[k] * scales[n, k/block] * (quants[n, k] - 2^(bits-1)), + bias.

    quants u8 [N, K/block, block*bits/8], low bits first; scales f32 [N, K/block]. `int8_activations` rounds x to int8
    per block (the kernel's accuracy_level 4); without it x stays f32.
    """

    x: Value
    quants: Value
    scales: Value
    bias: Value | None = None
    bits: int = 4
    block: int = 32
    int8_activations: bool = False

    def infer(self) -> Tensor:
        n, blocks, width = self.quants.type.sizes
        self.need(width * 8 == self.block * self.bits, f"{self.quants.type} is not {self.bits} bits x {self.block}")
        self.need(self.x.type.shape[-1] == blocks * self.block, f"{self.x.type} meets {blocks} blocks")
        self.need(self.scales.type == Tensor("f32", (n, blocks)), f"scales are {self.scales.type}")
        return self.x.type.reshape(*self.x.type.shape[:-1], n)

    def macs(self) -> int:
        return self.scales.type.count * self.block


class BlockSum(Op, name="block_sum", stages="ort"):
    """Sums of each `block` neighbours along the last axis: [..., K] -> [..., K/block]."""

    x: Value
    block: int

    def infer(self) -> Tensor:
        *rest, k = self.x.type.shape
        self.need(isinstance(k, int) and k % self.block == 0, f"{k} is not a multiple of {self.block}")
        return self.x.type.reshape(*rest, int(k) // self.block)


class BlockSpread(Op, name="block_spread", stages="ort"):
    """Each value `block` times along the last axis: [..., K] -> [..., K*block]."""

    x: Value
    block: int

    def infer(self) -> Tensor:
        *rest, k = self.x.type.shape
        self.need(isinstance(k, int) and self.block > 0, f"{k} values, {self.block} times")
        return self.x.type.reshape(*rest, int(k) * self.block)


class EmbeddingNBits(Op, name="embedding_nbits", stages="ort"):
    """Row lookup in a packed table: scales * (quants - 2^(bits-1)).

    quants u8 [V, K*bits/8], low bits first; scales f32 [V, K/block].
    """

    ids: Value
    quants: Value
    scales: Value
    bits: int = 8
    block: int = 32

    def infer(self) -> Tensor:
        width = self.quants.type.sizes[1] * 8 // self.bits
        self.need(self.scales.type.sizes[1] * self.block == width, f"scales are {self.scales.type}")
        return Tensor("f32", (*self.ids.type.shape, width))


class Halves(Op, name="halves", stages="ort"):
    """The last axis cut into two equal parts."""

    x: Value

    def infer(self) -> tuple[Tensor, ...]:
        *rest, k = self.x.type.shape
        self.need(isinstance(k, int) and k % 2 == 0, f"{k} has no halves")
        half = self.x.type.reshape(*rest, int(k) // 2)
        return half, half


class Cut(Op, name="cut", stages="ort"):
    """The last axis cut in two: x[..., :at], x[..., at:]."""

    x: Value
    at: int

    def infer(self) -> tuple[Tensor, ...]:
        *rest, k = self.x.type.shape
        self.need(isinstance(k, int) and 0 < self.at < k, f"{k} is not cut at {self.at}")
        return self.x.type.reshape(*rest, self.at), self.x.type.reshape(*rest, int(k) - self.at)


class MergeHeads(Op, name="merge_heads", stages="ort"):
    """[...,n,d] -> [...,n*d]."""

    x: Value

    def infer(self) -> Tensor:
        *rows, n, d = self.x.type.shape
        return self.x.type.reshape(*rows, int(n) * int(d))


class DynamicFreqs(Op, name="dynamic_freqs"):
    """NTK frequencies for the running length: f32 [dim/2].

    L = max(max(positions) + 1, M), M = max_positions; base = theta * (factor*L/M - (factor-1))^(dim/(dim-2));
    f_i = base^(-2i/dim) (transformers, modeling_rope_utils._compute_dynamic_ntk_parameters).
    """

    positions: Value
    theta: float
    dim: int
    factor: float
    max_positions: int

    def infer(self) -> Tensor:
        self.need(self.dim > 2, "dynamic rope needs more than two rotated features")
        return Tensor("f32", (self.dim // 2,))


class LengthFreqs(Op, name="length_freqs"):
    """Frequencies of each row for the length it runs at: [B,d/2] from the rows of table [2,d/2] (LongRoPE, Ding et al. 2024).

    The first while the row has at most `limit` tokens, the second beyond. A row has as many as its last position says, or
    `length` if that is more: a text that runs in parts states its whole length. New positions that would carry cached keys
    across the limit have no answer, since those keys were turned by the first.
    """

    positions: Value
    length: Value
    table: Value
    limit: int

    def infer(self) -> Tensor:
        self.need(self.table.type.rank == 2 and self.table.type.shape[0] == 2, f"table is {self.table.type}")
        self.need(self.length.type == Tensor("i64", ()), f"length is {self.length.type}")
        return self.table.type.reshape(self.positions.type.shape[0], self.table.type.shape[1])


class RopeTable(Op, name="rope_table", stages="ort"):
    """(magnitude * cos, magnitude * sin) of positions [B,S] * freqs [d/2] or [B,d/2], the angle in f32: two [B,S,d/2]."""

    positions: Value
    freqs: Value
    magnitude: float = 1.0

    def infer(self) -> tuple[Tensor, ...]:
        table = Tensor("f32", (*self.positions.type.shape, self.freqs.type.shape[-1]))
        return table, table


class Rotary(Op, name="rotary", stages="ort"):
    """Rotates the first 2*width features of each of `heads` heads of x [B,S,heads*d] by cos and sin [B,S,width]."""

    x: Value
    cos: Value
    sin: Value
    heads: int
    interleaved: bool = False

    def infer(self) -> Tensor:
        self.need(int(self.x.type.shape[-1]) % self.heads == 0, f"{self.x.type} has no {self.heads} heads")
        return self.x.type


class KeyLengths(Op, name="key_lengths", stages="ort"):
    """Real tokens of each row of the mask [B,T] from column `start` (0 without it) on, minus one, as the attention kernel counts
    them: i32 [B]."""

    mask: Value
    start: Value | None = None

    def infer(self) -> Tensor:
        return Tensor("i32", self.mask.type.shape[:1])


class TotalLength(Op, name="total_length", stages="ort"):
    """T, the mask's width, less `start` if it is given: i32 []."""

    mask: Value
    start: Value | None = None

    def infer(self) -> Tensor:
        return Tensor("i32", ())


class Gqa(Op, name="gqa", stages="ort"):
    """com.microsoft GroupQueryAttention: rotates (if cos and sin are given), appends to the cache and attends.

    q [B,S,H*d], k and v [B,S,K*d]; or all three in q as [B,S,(H+2K)*d]. cos and sin [context, width], read at `positions`
    [B,S], or at the past's length and on without them: they differ where past, lengths and total begin at a later key than
    the text's first. sinks [H] as in attention.
    """

    q: Value
    k: Value | None
    v: Value | None
    past_k: Value
    past_v: Value
    lengths: Value
    total: Value
    cos: Value | None = None
    sin: Value | None = None
    sinks: Value | None = None
    positions: Value | None = None
    heads: int = 0
    kv_heads: int = 0
    scale: float = 0.0
    softcap: float = 0.0
    window: int = 0
    interleaved: bool = False

    def infer(self) -> tuple[Tensor, ...]:
        b, s, width = self.q.type.shape
        d = self.past_k.type.shape[3]
        self.need(self.q.type.elem in FLOATS and isinstance(d, int), f"q is {self.q.type}")
        packed = self.k is None
        self.need(width == (self.heads + (2 * self.kv_heads if packed else 0)) * int(d), f"q is {self.q.type}")
        self.need(packed == (self.v is None), "k and v go together")
        self.need((self.cos is None) == (self.sin is None), "cos and sin go together")
        self.need(self.positions is None or (self.cos is not None and self.positions.type == Tensor("i64", (b, s))),
                  "positions are where cos and sin are read")
        self.need(self.sinks is None or self.sinks.type.shape == (self.heads,), "sinks are one logit for each query head")
        cache = self.past_k.type.reshape(b, self.kv_heads, "T", d)
        return self.q.type.reshape(b, s, self.heads * int(d)), cache, cache


class LatentGqa(Op, name="latent_gqa", stages="ort"):
    """latent_attention on GroupQueryAttention: with the projections absorbed or, for long steps, keys and values written out.

    Absorbed, head h asks the one latent row of each token with [q_plain[h] k_up[h] | q_turned[h]], and of what it gets the first
    c features go through v_up[h]. Operands as in latent_attention; lengths and total as in gqa.
    """

    q_plain: Value
    q_turned: Value
    latent: Value
    k_turned: Value
    k_up: Value
    v_up: Value
    past: Value
    past_v: Value
    lengths: Value
    total: Value
    scale: float

    def infer(self) -> tuple[Tensor, ...]:
        b, s, heads, _ = self.q_plain.type.shape
        width = int(self.latent.type.shape[-1]) + int(self.k_turned.type.shape[-1])
        self.need(self.past.type.shape == (b, 1, "P", width), f"past rows are {self.past.type}")
        cache = self.past.type.reshape(b, 1, "T", width)
        return self.q_plain.type.reshape(b, s, int(heads) * int(self.v_up.type.shape[1])), cache, cache
