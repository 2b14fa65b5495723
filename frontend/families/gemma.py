"""Gemma 1: a llama whose norms scale by 1 + weight and whose embeddings are scaled by sqrt(width) (Gemma Team 2024)."""
from __future__ import annotations

import struct
from typing import Any

from uaii.frontend import blocks
from uaii.frontend.build import Build
from uaii.frontend.common import DROPPED, DecoderConfig, equal_split, llama_names, pair
from uaii.frontend.config import FLAG, LENGTH, POSITIVE, REQUIRED, WORD, key, scalar_of
from uaii.frontend.family import Family
from uaii.frontend.rope import rope_keys
from uaii.frontend.tensors import Where, where
from uaii.ir.core import Value
from uaii.ir.known import known
from uaii.ir.ops import Add, Scale


class GemmaBase(DecoderConfig):
    """What the Gemma generations spell alike. llama.cpp's converter has added the norms' 1 to the stored weights."""

    kv_heads: int = key("num_key_value_heads", "attention.head_count_kv", default=16, gguf_default=scalar_of("heads"))
    head_dim: int = key("head_dim", "attention.key_length", default=256, gguf_default=equal_split)
    max_positions: int = key("max_position_embeddings", "context_length", LENGTH, default=8192, gguf_default=REQUIRED)
    tied: bool = key("tie_word_embeddings", kind=FLAG, default=True)
    eps: float = key("rms_norm_eps", "attention.layer_norm_rms_epsilon", POSITIVE, default=1e-6, gguf_default=REQUIRED)
    norm_offset: float = key((), default=1.0, gguf_default=0.0)
    attention_bias: bool | None = key("attention_bias", kind=FLAG, default=False, gguf_default=None)
    bidirectional: bool = key("use_bidirectional_attention", kind=FLAG, default=False, null=False, one_of=(False,))


class GemmaConfig(GemmaBase):
    """Source: transformers configuration_gemma.py; llama.cpp src/models/gemma.cpp."""

    act: str = blocks.activation("hidden_act", gguf="gelu_tanh", default="gelu_pytorch_tanh", reads={"gelu": "gelu_pytorch_tanh"})
    act_newer: str | None = key("hidden_activation", kind=WORD, default=None, null=None, one_of=(None, "gelu_pytorch_tanh"))
    rope: Any = rope_keys(theta=10000.0)

    def check(self) -> None:
        super().check()
        self.need(self.act_newer is None or self.act == "gelu_tanh", "hidden_activation", "hidden_act says another function")


def embed(b: Build, c: Any, ids: Value) -> Value:
    """Token embeddings times sqrt(width). A folder's factor is rounded to the type of its table, a GGUF's is not."""
    x = blocks.embed(b, c, ids)
    table = b.weight("embed", blocks.vocab(b, c), c.width)
    factor = nearest(c.width ** 0.5, table.type.elem if b.ckpt.format == "hf" else "f32")
    with b.scope("embed/scale"):
        return Scale(x, by=known(factor, c.width, table.loc)).out


def nearest(x: float, elem: str) -> float:
    """x rounded to f32, then to bf16 or f16 if `elem` is one of them; ties to even."""
    bits: int = struct.unpack("<I", struct.pack("<f", x))[0]
    if elem == "bf16":
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    single: float = struct.unpack("<f", struct.pack("<I", bits))[0]
    return float(struct.unpack("<e", struct.pack("<e", single))[0]) if elem == "f16" else single


def model(c: GemmaConfig, b: Build) -> None:
    ids, keep, step = blocks.inputs(b)
    x = embed(b, c, ids)
    for i in blocks.layers(c):
        with b.scope(f"layers.{i}"):
            h = b.rms_norm(x, "attn_norm", c.eps, i, c.norm_offset)
            q, k, v = blocks.rotated_heads(b, c, h, i, step, c.rope, c.attention_bias)
            a = blocks.attend(b, i, step, q, k, v, scale=c.head_dim ** -0.5)
            x = Add(x, b.linear(a, "attn.o", c.width, i, c.attention_bias)).out
            h = b.rms_norm(x, "ffn_norm", c.eps, i, c.norm_offset)
            x = Add(x, blocks.gated_mlp(b, h, i, c.ffn, c.act)).out
    x = b.rms_norm(x, "norm", c.eps, offset=c.norm_offset)
    blocks.result(b, blocks.head(b, c, blocks.last(b, x, keep)))


def gemma_names() -> dict[str, Where]:
    """A llama's tensors, less what llama.cpp refuses in a Gemma file: output.weight and a bias of the output projection."""
    attn_o = {name: where(place.hf, place.gguf if name == "attn.o" else ()) for name, place in
              pair("attn.o", "self_attn.o_proj", "attn_output").items()}
    return {**llama_names(permuted=False), **attn_o, "head": where("lm_head.weight")}


GEMMA = Family(name="gemma", hf=(("gemma", "GemmaForCausalLM"),), gguf=("gemma",), config=GemmaConfig, model=model,
               tensors=gemma_names(), dropped=DROPPED, brands=("Gemma", "CodeGemma"))
FAMILIES = (GEMMA,)
