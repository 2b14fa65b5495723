"""Qwen 1.5 and 2 with experts: Qwen 2 whose MLP is many small experts and one shared one, gated (Qwen team 2024)."""
from __future__ import annotations

from typing import Any

from uaii.frontend import blocks
from uaii.frontend.build import Build
from uaii.frontend.common import DROPPED, WINDOW_IGNORED, llama_names
from uaii.frontend.config import COUNT, FLAG, REQUIRED, Config, key, scalar_of
from uaii.frontend.families.qwen2 import Qwen2Config
from uaii.frontend.family import Family
from uaii.frontend.mixture import (
    ROUTER_TRAINING,
    WEIGHTING_IGNORED,
    ExpertConfig,
    SparseLayers,
    expert_names,
    feed_forward,
    gated_shared,
    shared_names,
    shared_score,
)
from uaii.frontend.window import window_keys
from uaii.ir.ops import Add


def even_lower_layers(c: Config, i: int) -> bool:
    """Whether layer i is even and below max_window_layers, 28 when absent."""
    first = COUNT.check(c.raw("max_window_layers"), "max_window_layers", c) if c.has("max_window_layers") else 28
    return i % 2 == 0 and bool(i < first)


def ffn_share(c: Any) -> Any:
    """llama.cpp's width of an expert that a file does not state."""
    return c.ffn // c.experts_used


class Qwen2MoeConfig(ExpertConfig, Qwen2Config):
    """Source: transformers configuration_qwen2_moe.py; llama.cpp src/models/qwen2moe.cpp, which has no window, no dense layer
    and a head of its own, and never renormalises."""

    kv_heads: int = key("num_key_value_heads", "attention.head_count_kv", default=16, gguf_default=scalar_of("heads"))
    windows: tuple[int, ...] = window_keys(even_lower_layers, hf=("max_window_layers",), absent=4096,
                                           switch="use_sliding_window")
    mrope: Any = None
    tied: bool = key("tie_word_embeddings", kind=FLAG, default=False)
    qkv_bias: bool | None = key("qkv_bias", kind=FLAG, default=True, gguf_default=None)  # a GGUF's tensors say
    experts: int = key("num_experts", "expert_count", default=60, gguf_default=REQUIRED)
    experts_used: int = key("num_experts_per_tok", "expert_used_count", default=4, gguf_default=REQUIRED)
    expert_width: int = key("moe_intermediate_size", "expert_feed_forward_length", default=1408, gguf_default=ffn_share)
    shared_width: int = key("shared_expert_intermediate_size", "expert_shared_feed_forward_length", default=5632,
                            gguf_default=scalar_of("ffn"))
    renormalise: bool = key("norm_topk_prob", kind=FLAG, default=False)
    sparse: Any = SparseLayers()
    inert = ROUTER_TRAINING | WINDOW_IGNORED | WEIGHTING_IGNORED

    def check(self) -> None:
        super().check()
        widthless = self.has("sliding_window") and self.raw("sliding_window") is None
        self.need(not (widthless and self.raw("use_sliding_window")), "sliding_window", "layers slide, but over no width")


def model(c: Qwen2MoeConfig, b: Build) -> None:
    ids, keep, step = blocks.inputs(b)
    x = blocks.embed(b, c, ids)
    for i in blocks.layers(c):
        with b.scope(f"layers.{i}"):
            h = b.rms_norm(x, "attn_norm", c.eps, i)
            q, k, v = blocks.rotated_heads(b, c, h, i, step, c.rope, c.qkv_bias)
            a = blocks.attend(b, i, step, q, k, v, scale=c.head_dim ** -0.5, window=c.windows[i])
            x = Add(x, b.linear(a, "attn.o", c.width, i, False)).out
            h = b.rms_norm(x, "ffn_norm", c.eps, i)
            y = feed_forward(b, c, h, i, (c.ffn, c.expert_width), False, sparse=c.sparse[i], top_k=c.experts_used,
                             renormalise=c.renormalise)
            x = Add(x, Add(y, gated_shared(b, h, i, c.shared_width, c.act)).out if c.sparse[i] else y).out
    x = b.rms_norm(x, "norm", c.eps)
    blocks.result(b, blocks.head(b, c, blocks.last(b, x, keep)))


QWEN2_MOE = Family(
    name="qwen2_moe", hf=(("qwen2_moe", "Qwen2MoeForCausalLM"),), gguf=("qwen2moe",), config=Qwen2MoeConfig, model=model,
    brands=("Qwen1.5-MoE-A2.7B", "Qwen2-57B-A14B"), dropped=DROPPED,
    tensors={**llama_names(permuted=False), **expert_names(), **shared_names("mlp.shared_expert"),
             **shared_score("mlp.shared_expert_gate")},
)
FAMILIES = (QWEN2_MOE,)
