"""Llama 2, 3, 3.x and what is built like it: pre-norm, rotary grouped-query attention, gated MLP (Touvron et al. 2023)."""
from __future__ import annotations

from typing import Any

from uaii.frontend import blocks
from uaii.frontend.build import Build
from uaii.frontend.common import DROPPED, WINDOW_IGNORED, DecoderConfig, llama_names
from uaii.frontend.config import COUNT, FLAG, POSITIVE, REQUIRED, key
from uaii.frontend.family import Family
from uaii.frontend.mixture import WEIGHTING_IGNORED, ExpertConfig, expert_names, feed_forward
from uaii.frontend.rope import rope_keys
from uaii.frontend.tensors import where
from uaii.ir.ops import Add


class LlamaConfig(ExpertConfig, DecoderConfig):
    """Source: transformers configuration_llama.py; llama.cpp src/models/llama.cpp, where Mixtral is a llama with experts."""

    eps: float = key("rms_norm_eps", "attention.layer_norm_rms_epsilon", POSITIVE, default=1e-6, gguf_default=REQUIRED)
    act: str = blocks.activation("hidden_act", gguf="silu", default="silu")
    rope: Any = rope_keys(theta=10000.0)
    attention_bias: bool | None = key("attention_bias", kind=FLAG, default=False, gguf_default=None)
    mlp_bias: bool | None = key("mlp_bias", kind=FLAG, default=False, gguf_default=None)
    interleaved: bool = key("rope_interleaved", kind=FLAG, default=False, one_of=(False,))
    sliding_window: None = key("sliding_window", default=None, null=None, one_of=(None,))  # transformers does not read it
    experts: int = key((), "expert_count", COUNT, default=0)
    experts_used: int = key((), "expert_used_count", COUNT, default=0)
    inert = WINDOW_IGNORED | WEIGHTING_IGNORED


def model(c: LlamaConfig, b: Build) -> None:
    ids, keep, step = blocks.inputs(b)
    x = blocks.embed(b, c, ids)
    for i in blocks.layers(c):
        with b.scope(f"layers.{i}"):
            h = b.rms_norm(x, "attn_norm", c.eps, i)
            q, k, v = blocks.rotated_heads(b, c, h, i, step, c.rope, c.attention_bias)
            a = blocks.attend(b, i, step, q, k, v, scale=c.head_dim ** -0.5)
            x = Add(x, b.linear(a, "attn.o", c.width, i, c.attention_bias)).out
            h = b.rms_norm(x, "ffn_norm", c.eps, i)
            x = Add(x, feed_forward(b, c, h, i, (c.ffn, c.ffn), c.mlp_bias, sparse=bool(c.experts), top_k=c.experts_used)).out
    x = b.rms_norm(x, "norm", c.eps)
    blocks.result(b, blocks.head(b, c, blocks.last(b, x, keep)))


LLAMA = Family(
    name="llama", hf=(("llama", "LlamaForCausalLM"),), gguf=("llama",), config=LlamaConfig, model=model,
    brands=("Llama 2", "Llama 3", "Llama 3.1", "Llama 3.2", "Llama 3.3", "CodeLlama", "TinyLlama", "SmolLM", "SmolLM2",
            "Mixtral (GGUF)"),
    tensors={**llama_names(permuted=True), **expert_names(), "rope_freqs": where((), "rope_freqs.weight")}, dropped=DROPPED,
)
FAMILIES = (LLAMA,)
