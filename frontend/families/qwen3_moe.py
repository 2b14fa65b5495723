"""Qwen 3 with experts: Qwen 3 whose MLP is many small experts, of which eight work for each token (Yang et al. 2025)."""
from __future__ import annotations

from typing import Any

from uaii.frontend import blocks
from uaii.frontend.build import Build
from uaii.frontend.common import DROPPED, WINDOW_IGNORED, llama_names, norm
from uaii.frontend.config import FLAG, REQUIRED, key, scalar_of
from uaii.frontend.families.qwen2_moe import ffn_share
from uaii.frontend.families.qwen3 import Qwen3Config
from uaii.frontend.family import Family
from uaii.frontend.mixture import ROUTER_TRAINING, WEIGHTING_IGNORED, ExpertConfig, SparseLayers, expert_names, feed_forward
from uaii.frontend.window import window_keys
from uaii.ir.ops import Add


class Qwen3MoeConfig(ExpertConfig, Qwen3Config):
    """Source: transformers configuration_qwen3_moe.py; llama.cpp src/models/qwen3moe.cpp, which has no window and no dense
    layer, and always renormalises."""

    kv_heads: int = key("num_key_value_heads", "attention.head_count_kv", default=4, gguf_default=scalar_of("heads"))
    head_dim: int = key("head_dim", "attention.key_length", default=lambda c: c.width // c.heads)
    windows: tuple[int, ...] = window_keys(lambda c, i: True, absent=4096, layer_types=False, switch="use_sliding_window")
    mrope: Any = None
    experts: int = key(("num_experts", "num_local_experts"), "expert_count", default=128, gguf_default=REQUIRED)
    experts_used: int = key("num_experts_per_tok", "expert_used_count", default=8, gguf_default=REQUIRED)
    expert_width: int = key("moe_intermediate_size", "expert_feed_forward_length", default=768, gguf_default=ffn_share)
    renormalise: bool = key("norm_topk_prob", kind=FLAG, default=False, gguf_default=True)
    sparse: Any = SparseLayers()
    inert = ROUTER_TRAINING | WINDOW_IGNORED | WEIGHTING_IGNORED | {
        "max_window_layers": "with use_sliding_window every layer slides (modeling_qwen3_moe.py)"}


def model(c: Qwen3MoeConfig, b: Build) -> None:
    ids, keep, step = blocks.inputs(b)
    x = blocks.embed(b, c, ids)
    for i in blocks.layers(c):
        with b.scope(f"layers.{i}"):
            h = b.rms_norm(x, "attn_norm", c.eps, i)
            q, k, v = blocks.heads(b, c, h, i, c.qkv_bias)
            q = blocks.rotated(b, c, b.rms_norm(q, "attn.q_norm", c.eps, i), step, c.rope)
            k = blocks.rotated(b, c, b.rms_norm(k, "attn.k_norm", c.eps, i), step, c.rope)
            a = blocks.attend(b, i, step, q, k, v, scale=c.head_dim ** -0.5, window=c.windows[i])
            x = Add(x, b.linear(a, "attn.o", c.width, i, c.out_bias)).out
            h = b.rms_norm(x, "ffn_norm", c.eps, i)
            y = feed_forward(b, c, h, i, (c.ffn, c.expert_width), False, sparse=c.sparse[i], top_k=c.experts_used,
                             renormalise=c.renormalise)
            x = Add(x, y).out
    x = b.rms_norm(x, "norm", c.eps)
    blocks.result(b, blocks.head(b, c, blocks.last(b, x, keep)))


QWEN3_MOE = Family(
    name="qwen3_moe", hf=(("qwen3_moe", "Qwen3MoeForCausalLM"),), gguf=("qwen3moe",), config=Qwen3MoeConfig, model=model,
    brands=("Qwen3-30B-A3B", "Qwen3-235B-A22B", "Qwen3-Coder"), dropped=DROPPED,
    tensors={**llama_names(permuted=False), **expert_names(), **norm("attn.q_norm", "self_attn.q_norm", "attn_q_norm"),
             **norm("attn.k_norm", "self_attn.k_norm", "attn_k_norm")},
)
FAMILIES = (QWEN3_MOE,)
