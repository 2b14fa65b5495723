"""Qwen 2 and 2.5: llama's shape with biases on q, k and v, and a window on the upper layers if switched on (Yang et al. 2024)."""
from __future__ import annotations

from typing import Any

from uaii.frontend import blocks
from uaii.frontend.build import Build
from uaii.frontend.common import DROPPED, WINDOW_IGNORED, DecoderConfig, llama_names
from uaii.frontend.config import COUNT, FLAG, LENGTH, POSITIVE, REQUIRED, Config, key, scalar_of
from uaii.frontend.family import Family
from uaii.frontend.rope import rope_keys
from uaii.frontend.tensors import where
from uaii.frontend.window import window_keys
from uaii.ir.ops import Add


def upper_layers(c: Config, i: int) -> bool:
    """Whether layer i is at or above max_window_layers, 28 when absent."""
    first = COUNT.check(c.raw("max_window_layers"), "max_window_layers", c) if c.has("max_window_layers") else 28
    return bool(i >= first)


class Qwen2Config(DecoderConfig):
    """Source: transformers configuration_qwen2.py; llama.cpp src/models/qwen2.cpp, where no layer has a window."""

    kv_heads: int = key("num_key_value_heads", "attention.head_count_kv", default=32, gguf_default=scalar_of("heads"),
                        null=scalar_of("heads"))
    head_dim: int = key("head_dim", "attention.key_length", default=lambda c: c.width // c.heads)
    max_positions: int = key("max_position_embeddings", "context_length", LENGTH, default=32768, gguf_default=REQUIRED)
    eps: float = key("rms_norm_eps", "attention.layer_norm_rms_epsilon", POSITIVE, default=1e-6, gguf_default=REQUIRED)
    act: str = blocks.activation("hidden_act", gguf="silu", default="silu")
    rope: Any = rope_keys(theta=10000.0)
    windows: tuple[int, ...] = window_keys(upper_layers, hf=("max_window_layers",), absent=4096, switch="use_sliding_window")
    mrope: bool = key("use_mrope", kind=FLAG, default=False, one_of=(False,))  # for images, in the text model's file
    qkv_bias: bool | None = key((), kind=FLAG, default=True, gguf_default=None)  # a GGUF's tensors say
    inert = WINDOW_IGNORED


def model(c: Qwen2Config, b: Build) -> None:
    ids, keep, step = blocks.inputs(b)
    x = blocks.embed(b, c, ids)
    for i in blocks.layers(c):
        with b.scope(f"layers.{i}"):
            h = b.rms_norm(x, "attn_norm", c.eps, i)
            q, k, v = blocks.rotated_heads(b, c, h, i, step, c.rope, c.qkv_bias)
            a = blocks.attend(b, i, step, q, k, v, scale=c.head_dim ** -0.5, window=c.windows[i])
            x = Add(x, b.linear(a, "attn.o", c.width, i, False)).out
            h = b.rms_norm(x, "ffn_norm", c.eps, i)
            x = Add(x, blocks.gated_mlp(b, h, i, c.ffn, c.act, False)).out
    x = b.rms_norm(x, "norm", c.eps)
    blocks.result(b, blocks.head(b, c, blocks.last(b, x, keep)))


QWEN2 = Family(
    name="qwen2", hf=(("qwen2", "Qwen2ForCausalLM"),), gguf=("qwen2",), config=Qwen2Config, model=model,
    brands=("Qwen2", "Qwen2.5", "QwQ", "DeepSeek-R1-Distill-Qwen"), dropped=DROPPED,
    tensors={**llama_names(permuted=False), "head.bias": where((), "output.bias")},
)
FAMILIES = (QWEN2,)
