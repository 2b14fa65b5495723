"""Positions, rotation and attention as the model means them."""
from __future__ import annotations

from dataclasses import dataclass

from uaii.ir.core import Op, Value
from uaii.ir.types import INTS, Tensor


@dataclass(frozen=True)
class RopeScaling:
    """A rope_scaling record as the checkpoint states it; `kind` is one of passes.fold_rope.KINDS."""

    kind: str
    params: tuple[tuple[str, float | bool | tuple[float, ...]], ...] = ()


class Positions(Op, name="positions"):
    """Position of each new token: how many unmasked tokens stand before it in its row of the mask [B,T]."""

    mask: Value
    ids: Value

    def infer(self) -> Tensor:
        self.need(self.mask.type.elem in INTS and self.mask.type.rank == 2, f"mask is {self.mask.type}")
        return Tensor("i64", self.ids.type.shape)


class SplitHeads(Op, name="split_heads"):
    """[...,n*d] -> [...,n,d]."""

    x: Value
    n: int

    def infer(self) -> Tensor:
        *rows, width = self.x.type.shape
        self.need(isinstance(width, int) and width % self.n == 0, f"{width} does not split into {self.n} heads")
        return self.x.type.reshape(*rows, self.n, int(width) // self.n)


class Temperature(Op, name="temperature"):
    """Factor of the queries at each position p [B,S]: 1 + beta * ln(1 + floor(p / length)), f32 [B,S].

    Source: transformers modeling_ministral3.py (Llama 4's temperature); llama.cpp src/models/mistral3.cpp.
    """

    positions: Value
    beta: float
    length: int

    def infer(self) -> Tensor:
        self.need(self.positions.type.elem in INTS and self.positions.type.rank == 2, f"positions are {self.positions.type}")
        self.need(self.length > 0, f"length {self.length} is not positive")
        return Tensor("f32", self.positions.type.shape)


class ScaleRows(Op, name="scale_rows"):
    """x [B,S,...] times by [B,S], one factor for each position."""

    x: Value
    by: Value

    def infer(self) -> Tensor:
        self.need(self.x.type.rank > 2 and self.x.type.shape[:2] == self.by.type.shape, f"{self.x.type} by {self.by.type}")
        self.need(self.x.type.elem == self.by.type.elem, f"{self.x.type} by {self.by.type}")
        return self.x.type


class Rope(Op, name="rope"):
    """Rotates the first `dim` features of each head by position * frequency (Su et al. 2021).

    Pairs are halves (i, i + dim/2), or neighbours (2i, 2i+1) when `interleaved`. cos and sin are multiplied by
    `magnitude`. Until fold-rope, `theta` and `scaling` state the frequencies, which `divisors` divide if given, or
    `long_divisors` in an artifact for long texts; `length` is the input that states how long a text becomes that runs in
    parts. After fold-rope, `freqs` [dim/2] does, or [B,dim/2] where each row has its own.
    """

    x: Value
    positions: Value
    freqs: Value | None = None
    divisors: Value | None = None
    long_divisors: Value | None = None
    length: Value | None = None
    theta: float | None = None
    dim: int = 0
    interleaved: bool = False
    scaling: RopeScaling | None = None
    magnitude: float = 1.0

    def infer(self) -> Tensor:
        self.need(self.positions.type.elem in INTS, "positions must be integers")
        self.need((self.theta is None) != (self.freqs is None), "takes theta or freqs, not both")
        width = self.x.type.shape[-1]
        self.need(isinstance(width, int) and 0 < self.dim <= width and self.dim % 2 == 0,
                  f"cannot rotate {self.dim} of {width} features")
        half, each = (self.dim // 2,), (self.positions.type.shape[0], self.dim // 2)
        for v, shapes in ((self.freqs, (half, each)), (self.divisors, (half,)), (self.long_divisors, (half,))):
            self.need(v is None or v.type.shape in shapes, f"{self.dim // 2} frequencies are needed")
        return self.x.type


class Attention(Op, name="attention"):
    """Causal grouped-query attention over past and new keys (Vaswani 2017, Ainslie 2023); yields the new cache.

    q [B,S,H,d], k and v [B,S,K,d], past [B,K,P,d], mask [B,T] (1 = a real token) -> [B,S,H*d], and keys and values
    [B,K,T,d]. score = scale * q.k, then cap * tanh(score / cap) if softcap, then only j <= i with mask[j] and, if
    window, i - j < window; a softmax over what is left. With `sinks` [H], each row has that logit of its head besides, whose
    share of the softmax goes nowhere (Xiao et al. 2023; gpt-oss).
    """

    q: Value
    k: Value
    v: Value
    past_k: Value
    past_v: Value
    mask: Value
    scale: float
    softcap: float = 0.0
    window: int = 0
    sinks: Value | None = None

    def infer(self) -> tuple[Tensor, ...]:
        b, s, heads, d = self.q.type.shape
        kv = self.k.type.shape[2]
        self.need(isinstance(heads, int) and isinstance(kv, int) and isinstance(d, int), "head sizes must be known")
        self.need(int(heads) % int(kv) == 0, f"{heads} query heads over {kv} key heads")
        self.need(self.k.type == self.v.type and self.k.type.shape[3] == d, f"k {self.k.type}, v {self.v.type}")
        self.need(self.past_k.type.shape == (b, kv, "P", d), f"past keys are {self.past_k.type}")
        self.need(self.window >= 0 and self.softcap >= 0, "window and softcap are not negative")
        self.need(self.sinks is None or self.sinks.type.shape == (heads,), "sinks are one logit for each query head")
        cache = self.past_k.type.reshape(b, kv, "T", d)
        return self.q.type.reshape(b, s, int(heads) * int(d)), cache, cache


class LatentAttention(Op, name="latent_attention"):
    """Causal attention of many heads over one cached latent row for each token (DeepSeek-V2, 2024, section 2.1).

    q_plain [B,S,H,n], q_turned [B,S,H,r] (rotated), latent [B,S,c] (normed), k_turned [B,S,1,r] (rotated, shared by all
    heads), k_up [H,n,c], v_up [H,v,c], past [B,1,P,c+r], mask [B,T] -> [B,S,H*v], and the rows [B,1,T,c+r] twice: head h has
    the key [k_up[h] latent | k_turned] and the value v_up[h] latent. score = scale * q.k. `past_v` is `past` under the
    name that a cache of keys and values has for it; a runtime may give both one buffer.
    """

    q_plain: Value
    q_turned: Value
    latent: Value
    k_turned: Value
    k_up: Value
    v_up: Value
    past: Value
    past_v: Value
    mask: Value
    scale: float

    def infer(self) -> tuple[Tensor, ...]:
        b, s, heads, n = self.q_plain.type.shape
        c, r = self.latent.type.shape[-1], self.q_turned.type.shape[-1]
        self.need(self.q_turned.type.shape == (b, s, heads, r), f"q is {self.q_plain.type} and {self.q_turned.type}")
        self.need(self.latent.type.shape == (b, s, c) and self.k_turned.type.shape == (b, s, 1, r),
                  f"the new row is {self.latent.type} and {self.k_turned.type}")
        v = self.v_up.type.shape[1]
        self.need(self.k_up.type.shape == (heads, n, c) and self.v_up.type.shape == (heads, v, c),
                  f"k_up is {self.k_up.type}, v_up {self.v_up.type}")
        self.need(self.past.type.shape == (b, 1, "P", int(c) + int(r)) and self.past_v.type == self.past.type,
                  f"past rows are {self.past.type}")
        cache = self.past.type.reshape(b, 1, "T", int(c) + int(r))
        return self.q_plain.type.reshape(b, s, int(heads) * int(v)), cache, cache
