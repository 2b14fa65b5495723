"""Granite 3, dense and with experts: llama's shape with four scalars, on embeddings, scores, residuals, logits (IBM 2024)."""
from __future__ import annotations

from typing import Any

from uaii.frontend import blocks
from uaii.frontend.build import Build
from uaii.frontend.common import DROPPED, LAYER, WINDOW_IGNORED, DecoderConfig, ffn_rows, llama_names
from uaii.frontend.config import COUNT, FLAG, POSITIVE, REQUIRED, key
from uaii.frontend.family import Family
from uaii.frontend.mixture import ROUTER_TRAINING, WEIGHTING_IGNORED, ExpertConfig, feed_forward
from uaii.frontend.rope import rope_keys
from uaii.frontend.tensors import At, EachRows, where
from uaii.ir.core import Value
from uaii.ir.ops import Add, Scale


class GraniteConfig(DecoderConfig):
    """Source: transformers configuration_granite.py, where scores are not divided by sqrt(head_dim) unless it says so;
    llama.cpp src/models/granite.cpp, where they are, and where rope.scaling.finetuned switches rope off."""

    head_dim: int = key("head_dim", "attention.key_length", default=lambda c: c.width // c.heads)
    eps: float = key("rms_norm_eps", "attention.layer_norm_rms_epsilon", POSITIVE, default=1e-6, gguf_default=REQUIRED)
    act: str = blocks.activation("hidden_act", gguf="silu", default="silu")
    rope: Any = rope_keys(theta=10000.0)
    rotates: bool = key((), "rope.scaling.finetuned", FLAG, default=True, one_of=(True,))
    attention_bias: bool | None = key("attention_bias", kind=FLAG, default=False, gguf_default=None)
    mlp_bias: bool | None = key("mlp_bias", kind=FLAG, default=False, gguf_default=None)
    embedding: float = key("embedding_multiplier", "embedding_scale", POSITIVE, default=1.0)
    residual: float = key("residual_multiplier", "residual_scale", POSITIVE, default=1.0)
    attention: float = key("attention_multiplier", "attention.scale", POSITIVE, default=1.0,
                           gguf_default=lambda c: c.head_dim ** -0.5)
    logits: float = key("logits_scaling", "logit_scale", POSITIVE, default=1.0, gguf_default=REQUIRED)
    experts: int = key((), "expert_count", COUNT, default=0, one_of=(0,))
    experts_used: int = key((), "expert_used_count", COUNT, default=0, one_of=(0,))
    inert = WINDOW_IGNORED


class GraniteMoeConfig(ExpertConfig, GraniteConfig):
    """Source: transformers configuration_granitemoe.py, where a softmax over the chosen logits is the softmax over all,
    renormalised; llama.cpp src/models/granite-moe.cpp, which rotates whatever rope.scaling.finetuned says."""

    rotates: Any = None
    mlp_bias: Any = None
    experts: int = key("num_local_experts", "expert_count", default=8, gguf_default=REQUIRED)
    experts_used: int = key("num_experts_per_tok", "expert_used_count", default=2, gguf_default=REQUIRED)
    inert = ROUTER_TRAINING | WINDOW_IGNORED | WEIGHTING_IGNORED


def scaled(b: Build, x: Value, by: float, name: str) -> Value:
    with b.scope(name):
        return Scale(x, by=by).out


def model(c: GraniteConfig, b: Build) -> None:
    ids, keep, step = blocks.inputs(b)
    x = scaled(b, blocks.embed(b, c, ids), c.embedding, "embed/scale")
    for i in blocks.layers(c):
        with b.scope(f"layers.{i}"):
            h = b.rms_norm(x, "attn_norm", c.eps, i)
            q, k, v = blocks.rotated_heads(b, c, h, i, step, c.rope, c.attention_bias)
            a = blocks.attend(b, i, step, q, k, v, scale=c.attention)
            x = Add(x, scaled(b, b.linear(a, "attn.o", c.width, i, c.attention_bias), c.residual, "attn/scale")).out
            h = b.rms_norm(x, "ffn_norm", c.eps, i)
            y = feed_forward(b, c, h, i, (c.ffn, c.ffn), c.mlp_bias, sparse=bool(c.experts), top_k=c.experts_used)
            x = Add(x, scaled(b, y, c.residual, "ffn/scale")).out
    x = b.rms_norm(x, "norm", c.eps)
    logits = blocks.head(b, c, blocks.last(b, x, keep))
    blocks.result(b, scaled(b, logits, 1.0 / c.logits, "head/scale"))


GRANITE = Family(
    name="granite", hf=(("granite", "GraniteForCausalLM"),), gguf=("granite",), config=GraniteConfig, model=model,
    brands=("Granite 3.0", "Granite 3.1", "Granite 3.2", "Granite 3.3"), dropped=DROPPED,
    tensors={**llama_names(permuted=True), "rope_freqs": where((), "rope_freqs.weight")},
)
GRANITE_MOE = GRANITE.but(
    name="granitemoe", hf=(("granitemoe", "GraniteMoeForCausalLM"),), gguf=("granitemoe",), config=GraniteMoeConfig,
    brands=("Granite 3.0 1B-A400M, 3B-A800M", "Granite 3.1 1B-A400M, 3B-A800M"),
    tensors={**{k: w for k, w in GRANITE.tensors.items() if not k.startswith("ffn.")},
             "moe.router": where(f"{LAYER}block_sparse_moe.router.layer.weight", "blk.{i}.ffn_gate_inp.weight"),
             **{f"moe.{n}": where(At(f"{LAYER}block_sparse_moe.input_linear.weight", (EachRows(j, ffn_rows),)),
                                  f"blk.{{i}}.ffn_{n}_exps.weight") for j, n in enumerate(("gate", "up"))},
             "moe.down": where(f"{LAYER}block_sparse_moe.output_linear.weight", "blk.{i}.ffn_down_exps.weight")},
)
FAMILIES = (GRANITE, GRANITE_MOE)
