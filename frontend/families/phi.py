"""Phi 1, 1.5 and 2: one norm feeds attention and MLP, part of each head rotates, biases everywhere (Li et al. 2023)."""
from __future__ import annotations

from typing import Any

from uaii.frontend import blocks
from uaii.frontend.build import Build
from uaii.frontend.common import DROPPED, DecoderConfig, equal_split, outer, pair, projections
from uaii.frontend.config import FLAG, POSITIVE, REQUIRED, key
from uaii.frontend.family import Family
from uaii.frontend.rope import rope_keys
from uaii.frontend.rotary_width import FACTOR, rotary_width
from uaii.frontend.tensors import where
from uaii.ir.ops import Add


class PhiConfig(DecoderConfig):
    """Source: transformers configuration_phi.py; llama.cpp src/models/phi2.cpp."""

    head_dim: int = key("head_dim", "attention.key_length", default=equal_split)
    rotary_dim: int = rotary_width(0.5)
    tied: bool = key("tie_word_embeddings", kind=FLAG, default=False)
    eps: float = key("layer_norm_eps", "attention.layer_norm_epsilon", POSITIVE, default=1e-5, gguf_default=REQUIRED)
    act: str = blocks.activation("hidden_act", gguf="gelu_tanh", default="gelu_new")
    rope: Any = rope_keys(10000.0, also=(FACTOR,))
    qk_norm: bool = key("qk_layernorm", kind=FLAG, default=False)
    qkv_bias: bool | None = key((), default=True, gguf_default=None)  # a GGUF's tensors say


def model(c: PhiConfig, b: Build) -> None:
    ids, keep, step = blocks.inputs(b)
    x = blocks.embed(b, c, ids)
    for i in blocks.layers(c):
        with b.scope(f"layers.{i}"):
            h = b.layer_norm(x, "attn_norm", c.eps, i)
            q, k, v = blocks.heads(b, c, h, i, c.qkv_bias)
            if c.qk_norm:
                q, k = b.layer_norm(q, "attn.q_norm", c.eps, i), b.layer_norm(k, "attn.k_norm", c.eps, i)
            q, k = blocks.rotated(b, c, q, step, c.rope), blocks.rotated(b, c, k, step, c.rope)
            a = blocks.attend(b, i, step, q, k, v, scale=c.head_dim ** -0.5)
            y = Add(b.linear(a, "attn.o", c.width, i, True), blocks.mlp(b, h, i, c.ffn, c.act, True)).out
            x = Add(x, y).out
    x = b.layer_norm(x, "norm", c.eps)
    blocks.result(b, blocks.head(b, c, blocks.last(b, x, keep), bias=True))


PHI = Family(
    name="phi", hf=(("phi", "PhiForCausalLM"),), gguf=("phi2",), config=PhiConfig, model=model,
    brands=("Phi-1", "Phi-1.5", "Phi-2"), dropped=DROPPED,
    tensors={
        "embed": where("model.embed_tokens.weight", "token_embd.weight"), **pair("attn_norm", "input_layernorm", "attn_norm"),
        **projections(permuted=False), **pair("attn.q_norm", "self_attn.q_layernorm", "attn_q_norm"),
        **pair("attn.k_norm", "self_attn.k_layernorm", "attn_k_norm"), **pair("attn.o", "self_attn.dense", "attn_output"),
        **pair("ffn.up", "mlp.fc1", "ffn_up"), **pair("ffn.down", "mlp.fc2", "ffn_down"),
        **outer("norm", "model.final_layernorm", "output_norm"), **outer("head", "lm_head", "output"),
    },
)
FAMILIES = (PHI,)
