"""Mistral 7B, Nemo and Small: llama's shape with one sliding window for all layers, and no biases (Jiang et al. 2023).

In a GGUF it is arch llama, which the llama family reads: llama.cpp knows no window there.
"""
from __future__ import annotations

from typing import Any

from uaii.frontend import blocks
from uaii.frontend.build import Build
from uaii.frontend.common import DROPPED, DecoderConfig, llama_names
from uaii.frontend.config import LENGTH, POSITIVE, key
from uaii.frontend.family import Family
from uaii.frontend.rope import rope_keys
from uaii.frontend.window import window_keys
from uaii.ir.ops import Add


class MistralConfig(DecoderConfig):
    """Source: transformers configuration_mistral.py. An absent sliding_window is 4096 tokens, null is none."""

    kv_heads: int = key("num_key_value_heads", default=8)
    max_positions: int = key("max_position_embeddings", kind=LENGTH, default=131072)
    eps: float = key("rms_norm_eps", kind=POSITIVE, default=1e-6)
    act: str = blocks.activation("hidden_act", gguf="silu", default="silu")
    rope: Any = rope_keys(theta=10000.0)
    windows: tuple[int, ...] = window_keys(lambda c, i: True, absent=4096, layer_types=False)


def model(c: MistralConfig, b: Build) -> None:
    ids, keep, step = blocks.inputs(b)
    x = blocks.embed(b, c, ids)
    for i in blocks.layers(c):
        with b.scope(f"layers.{i}"):
            h = b.rms_norm(x, "attn_norm", c.eps, i)
            q, k, v = blocks.rotated_heads(b, c, h, i, step, c.rope, False)
            a = blocks.attend(b, i, step, q, k, v, scale=c.head_dim ** -0.5, window=c.windows[i])
            x = Add(x, b.linear(a, "attn.o", c.width, i, False)).out
            h = b.rms_norm(x, "ffn_norm", c.eps, i)
            x = Add(x, blocks.gated_mlp(b, h, i, c.ffn, c.act, False)).out
    x = b.rms_norm(x, "norm", c.eps)
    blocks.result(b, blocks.head(b, c, blocks.last(b, x, keep)))


MISTRAL = Family(
    name="mistral", hf=(("mistral", "MistralForCausalLM"),), gguf=(), config=MistralConfig, model=model,
    brands=("Mistral 7B", "Mistral Nemo", "Mistral Small", "Codestral", "Zephyr"), dropped=DROPPED,
    tensors=llama_names(permuted=True),
)
FAMILIES = (MISTRAL,)
