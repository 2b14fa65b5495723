"""GLM-4 as ported to transformers: half of each head rotates in neighbours, gate and up in one tensor (GLM Team 2024).

GLM-4-0414 norms the outputs of attention and MLP too.
"""
from __future__ import annotations

from typing import Any

from uaii.frontend import blocks
from uaii.frontend.build import Build
from uaii.frontend.common import DROPPED, DecoderConfig, equal_split, fused_gate_up, norm, projections
from uaii.frontend.config import FLAG, LENGTH, POSITIVE, REQUIRED, key, scalar_of
from uaii.frontend.family import Family
from uaii.frontend.rope import rope_keys
from uaii.frontend.rotary_width import FACTOR, rotary_width
from uaii.frontend.tensors import where
from uaii.ir.ops import Add


class GlmConfig(DecoderConfig):
    """Source: transformers configuration_glm.py, configuration_glm4.py; llama.cpp src/models/chatglm.cpp, glm4.cpp."""

    kv_heads: int = key("num_key_value_heads", "attention.head_count_kv", default=2, gguf_default=scalar_of("heads"))
    head_dim: int = key("head_dim", "attention.key_length", default=128, gguf_default=equal_split)
    rotary_dim: int = rotary_width(0.5)
    max_positions: int = key("max_position_embeddings", "context_length", LENGTH, default=131072, gguf_default=REQUIRED)
    eps: float = key("rms_norm_eps", "attention.layer_norm_rms_epsilon", POSITIVE, default=1.5625e-7, gguf_default=REQUIRED)
    act: str = blocks.activation("hidden_act", gguf="silu", default="silu")
    rope: Any = rope_keys(10000.0, also=(FACTOR,))
    qkv_bias: bool | None = key("attention_bias", kind=FLAG, default=True, gguf_default=None)


def model(c: GlmConfig, b: Build) -> None:
    ids, keep, step = blocks.inputs(b)
    x = blocks.embed(b, c, ids)
    for i in blocks.layers(c):
        with b.scope(f"layers.{i}"):
            h = b.rms_norm(x, "attn_norm", c.eps, i)
            q, k, v = blocks.rotated_heads(b, c, h, i, step, c.rope, c.qkv_bias, interleaved=True)
            a = blocks.attend(b, i, step, q, k, v, scale=c.head_dim ** -0.5)
            y = b.linear(a, "attn.o", c.width, i)
            if "attn.post_norm" in b.tensors:
                y = b.rms_norm(y, "attn.post_norm", c.eps, i)
            x = Add(x, y).out
            h = b.rms_norm(x, "ffn_norm", c.eps, i)
            y = blocks.gated_mlp(b, h, i, c.ffn, c.act)
            if "ffn.post_norm" in b.tensors:
                y = b.rms_norm(y, "ffn.post_norm", c.eps, i)
            x = Add(x, y).out
    x = b.rms_norm(x, "norm", c.eps)
    blocks.result(b, blocks.head(b, c, blocks.last(b, x, keep)))


GLM = Family(
    name="glm", hf=(("glm", "GlmForCausalLM"),), gguf=("chatglm",), config=GlmConfig, model=model, dropped=DROPPED,
    brands=("GLM-4-9B", "GLM-Edge"),
    tensors={
        "embed": where("model.embed_tokens.weight", "token_embd.weight"),
        **norm("attn_norm", "input_layernorm", "attn_norm"), **norm("ffn_norm", "post_attention_layernorm", "ffn_norm"),
        **projections(permuted=False), **norm("attn.o", "self_attn.o_proj", "attn_output"),
        **fused_gate_up(), **norm("ffn.down", "mlp.down_proj", "ffn_down"),
        "norm": where("model.norm.weight", "output_norm.weight"), "head": where("lm_head.weight", "output.weight"),
    },
)
GLM4 = GLM.but(
    name="glm4", hf=(("glm4", "Glm4ForCausalLM"),), gguf=("glm4",), brands=("GLM-4-0414", "GLM-Z1"),
    tensors={**GLM.tensors, **norm("attn.post_norm", "post_self_attn_layernorm", "post_attention_norm"),
             **norm("ffn.post_norm", "post_mlp_layernorm", "post_ffw_norm")},
)
FAMILIES = (GLM, GLM4)
