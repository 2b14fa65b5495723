"""Nemotron-4 and Minitron: LayerNorms scale by 1 + weight, half of each head rotates, relu^2 without a gate (NVIDIA 2024)."""
from __future__ import annotations

from typing import Any

from uaii.frontend import blocks
from uaii.frontend.build import Build
from uaii.frontend.common import DROPPED, DecoderConfig, outer, pair, projections
from uaii.frontend.config import FLAG, LENGTH, POSITIVE, REQUIRED, key, scalar_of
from uaii.frontend.family import Family
from uaii.frontend.rope import rope_keys
from uaii.frontend.rotary_width import FACTOR, rotary_width
from uaii.frontend.tensors import where
from uaii.ir.ops import Add


class NemotronConfig(DecoderConfig):
    """Source: transformers configuration_nemotron.py; llama.cpp src/models/nemotron.cpp, whose converter has added the 1."""

    kv_heads: int = key("num_key_value_heads", "attention.head_count_kv", gguf_default=scalar_of("heads"))
    rotary_dim: int = rotary_width(0.5)
    max_positions: int = key("max_position_embeddings", "context_length", LENGTH, default=4096, gguf_default=REQUIRED)
    eps: float = key("norm_eps", "attention.layer_norm_epsilon", POSITIVE, default=1e-5, gguf_default=REQUIRED)
    norm_offset: float = key((), default=1.0, gguf_default=0.0)
    act: str = blocks.activation("hidden_act", gguf="relu2", default="relu2")
    rope: Any = rope_keys(10000.0, also=(FACTOR,))
    tied: bool = key("tie_word_embeddings", kind=FLAG, default=False)
    attention_bias: bool | None = key("attention_bias", kind=FLAG, default=False, gguf_default=None)
    mlp_bias: bool | None = key("mlp_bias", kind=FLAG, default=False, gguf_default=None)


def model(c: NemotronConfig, b: Build) -> None:
    ids, keep, step = blocks.inputs(b)
    x = blocks.embed(b, c, ids)
    for i in blocks.layers(c):
        with b.scope(f"layers.{i}"):
            h = b.layer_norm(x, "attn_norm", c.eps, i, c.norm_offset)
            q, k, v = blocks.rotated_heads(b, c, h, i, step, c.rope, c.attention_bias)
            a = blocks.attend(b, i, step, q, k, v, scale=c.head_dim ** -0.5)
            x = Add(x, b.linear(a, "attn.o", c.width, i, c.attention_bias)).out
            h = b.layer_norm(x, "ffn_norm", c.eps, i, c.norm_offset)
            x = Add(x, blocks.mlp(b, h, i, c.ffn, c.act, c.mlp_bias)).out
    x = b.layer_norm(x, "norm", c.eps, offset=c.norm_offset)
    blocks.result(b, blocks.head(b, c, blocks.last(b, x, keep)))


NEMOTRON = Family(
    name="nemotron", hf=(("nemotron", "NemotronForCausalLM"),), gguf=("nemotron",), config=NemotronConfig, model=model,
    brands=("Nemotron-4", "Nemotron-Mini", "Minitron"), dropped=DROPPED,
    tensors={
        "embed": where("model.embed_tokens.weight", "token_embd.weight"), **pair("attn_norm", "input_layernorm", "attn_norm"),
        **projections(permuted=False), **pair("attn.o", "self_attn.o_proj", "attn_output"),
        **pair("ffn_norm", "post_attention_layernorm", "ffn_norm"), **pair("ffn.up", "mlp.up_proj", "ffn_up"),
        **pair("ffn.down", "mlp.down_proj", "ffn_down"), **outer("norm", "model.norm", "output_norm"),
        "head": where("lm_head.weight", "output.weight"),
    },
)
FAMILIES = (NEMOTRON,)
