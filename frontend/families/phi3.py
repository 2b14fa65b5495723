"""Phi 3, 3.5 and 4: a llama with fused projections, part of each head rotated, and LongRoPE (Abdin et al. 2024)."""
from __future__ import annotations

from typing import Any

from uaii.frontend import blocks
from uaii.frontend.build import Build
from uaii.frontend.common import DROPPED, WINDOW_IGNORED, DecoderConfig, equal_split, fused_gate_up, fused_qkv, norm
from uaii.frontend.config import FLAG, LENGTH, POSITIVE, REQUIRED, key
from uaii.frontend.family import Family
from uaii.frontend.rope import rope_keys
from uaii.frontend.rotary_width import FACTOR, rotary_width
from uaii.frontend.tensors import where
from uaii.frontend.window import window_keys
from uaii.ir.ops import Add

# transformers renames the two older words; publishers' files of either mean longrope.
KINDS = {"default": "default", "longrope": "longrope", "su": "longrope", "yarn": "longrope"}


class Phi3Config(DecoderConfig):
    """Source: transformers configuration_phi3.py; llama.cpp src/models/phi3.cpp, whose file gives the tensors' word on biases.

    The last five are settings of the publisher's own code that transformers does not read.
    """

    head_dim: int = key("head_dim", "attention.key_length", default=equal_split)
    rotary_dim: int = rotary_width(1.0)
    max_positions: int = key("max_position_embeddings", "context_length", LENGTH, default=4096, gguf_default=REQUIRED)
    rope: Any = rope_keys(10000.0, also=(FACTOR,), kinds=KINDS, original=4096)
    windows: tuple[int, ...] = window_keys(lambda c, i: True, layer_types=False)
    eps: float = key("rms_norm_eps", "attention.layer_norm_rms_epsilon", POSITIVE, default=1e-5, gguf_default=REQUIRED)
    act: str = blocks.activation("hidden_act", gguf="silu", default="silu")
    attention_bias: bool | None = key("attention_bias", kind=FLAG, default=False, gguf_default=None, one_of=(False,))
    mlp_bias: bool = key("mlp_bias", kind=FLAG, default=False, one_of=(False,))
    head_bias: bool = key("lm_head_bias", kind=FLAG, default=False, one_of=(False,))
    full_attention_every: int = key("full_attn_mod", default=1, one_of=(1,))
    interpolate: int = key("interpolate_factor", default=1, one_of=(1,))
    inert = WINDOW_IGNORED


def model(c: Phi3Config, b: Build) -> None:
    ids, keep, step = blocks.inputs(b)
    x = blocks.embed(b, c, ids)
    for i in blocks.layers(c):
        with b.scope(f"layers.{i}"):
            h = b.rms_norm(x, "attn_norm", c.eps, i)
            q, k, v = blocks.rotated_heads(b, c, h, i, step, c.rope, c.attention_bias)
            a = blocks.attend(b, i, step, q, k, v, scale=c.head_dim ** -0.5, window=c.windows[i])
            x = Add(x, b.linear(a, "attn.o", c.width, i)).out
            h = b.rms_norm(x, "ffn_norm", c.eps, i)
            x = Add(x, blocks.gated_mlp(b, h, i, c.ffn, c.act)).out
    x = b.rms_norm(x, "norm", c.eps)
    blocks.result(b, blocks.head(b, c, blocks.last(b, x, keep)))


PHI3 = Family(
    name="phi3", hf=(("phi3", "Phi3ForCausalLM"),), gguf=("phi3",), config=Phi3Config, model=model, dropped=DROPPED,
    brands=("Phi-3 mini", "Phi-3 medium", "Phi-3.5 mini", "Phi-4", "Phi-4 mini"),
    tensors={
        "embed": where("model.embed_tokens.weight", "token_embd.weight"),
        **norm("attn_norm", "input_layernorm", "attn_norm"), **norm("ffn_norm", "post_attention_layernorm", "ffn_norm"),
        **fused_qkv("self_attn.qkv_proj"), **norm("attn.o", "self_attn.o_proj", "attn_output"),
        **fused_gate_up(), **norm("ffn.down", "mlp.down_proj", "ffn_down"),
        "norm": where("model.norm.weight", "output_norm.weight"), "head": where("lm_head.weight", "output.weight"),
        "rope_short": where((), "rope_factors_short.weight"), "rope_long": where((), "rope_factors_long.weight"),
    },
)
FAMILIES = (PHI3,)
