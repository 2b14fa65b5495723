"""Llama 2, 3, 3.x and what is built like it: pre-norm, rotary grouped-query attention, gated MLP (Touvron et al. 2023)."""
from __future__ import annotations

from typing import Any

from uaii.frontend import blocks
from uaii.frontend.build import Build
from uaii.frontend.config import COUNT, FLAG, LAYERS, LENGTH, POSITIVE, Config, key, scalar_of
from uaii.frontend.family import Family
from uaii.frontend.rope import rope_keys
from uaii.frontend.tensors import At, Rows, Unpermute, where
from uaii.ir.ops import Add


class LlamaConfig(Config):
    """Source: transformers configuration_llama.py; llama.cpp src/models/llama.cpp."""

    width: int = key("hidden_size", "embedding_length")
    layers: int = key("num_hidden_layers", "block_count", LAYERS)
    heads: int = key("num_attention_heads", "attention.head_count")
    kv_heads: int = key("num_key_value_heads", "attention.head_count_kv", default=scalar_of("heads"), null=scalar_of("heads"))
    head_dim: int = key("head_dim", "attention.key_length", default=lambda c: c.width // c.heads, null=lambda c: c.width // c.heads)
    value_dim: int = key((), "attention.value_length", default=scalar_of("head_dim"))
    rotary_dim: int = key((), "rope.dimension_count", default=scalar_of("head_dim"))
    ffn: int = key("intermediate_size", "feed_forward_length")
    vocab: int = key("vocab_size", default=0, gguf_default=0)
    eps: float = key("rms_norm_eps", "attention.layer_norm_rms_epsilon", POSITIVE, default=1e-6)
    act: str = blocks.activation("hidden_act", gguf="silu", default="silu")
    max_positions: int = key("max_position_embeddings", "context_length", LENGTH, default=2048)
    rope: Any = rope_keys(theta=10000.0)
    tied: bool = key("tie_word_embeddings", kind=FLAG, default=False)
    attention_bias: bool | None = key("attention_bias", kind=FLAG, default=False, gguf_default=None)
    mlp_bias: bool | None = key("mlp_bias", kind=FLAG, default=False, gguf_default=None)
    interleaved: bool = key("rope_interleaved", kind=FLAG, default=False, one_of=(False,))
    experts: int = key((), "expert_count", COUNT, default=0, one_of=(0,))
    experts_used: int = key((), "expert_used_count", COUNT, default=0, one_of=(0,))

    def check(self) -> None:
        self.need(self.rotary_dim == self.head_dim, "rope.dimension_count", f"rotates {self.rotary_dim} of {self.head_dim} "
                  "features: llama has no partial rotary")
        self.need(self.value_dim == self.head_dim, "attention.value_length", "differs from attention.key_length")


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
            x = Add(x, blocks.gated_mlp(b, h, i, c.ffn, c.act, c.mlp_bias)).out
    x = b.rms_norm(x, "norm", c.eps)
    blocks.result(b, blocks.head(b, c, blocks.last(b, x, keep)))


def _qkv_rows(c: Any) -> tuple[int, int, int]:
    return c.heads * c.head_dim, c.kv_heads * c.head_dim, c.kv_heads * c.head_dim


def _projection(hf: str, gguf: str, part: int, heads: str | None) -> dict[str, Any]:
    """One of q, k, v: alone, or as rows of a fused attn_qkv; q and k with llama.cpp's row order undone."""
    undo = (Unpermute(heads),) if heads else ()
    return {f"attn.{hf}{suffix and '.bias'}": where(
        hf=f"model.layers.{{i}}.self_attn.{hf}_proj.{suffix or 'weight'}",
        gguf=(At(f"blk.{{i}}.{gguf}.{suffix or 'weight'}", undo),
              At(f"blk.{{i}}.attn_qkv.{suffix or 'weight'}", (Rows(part, _qkv_rows), *undo))))
        for suffix in ("", "bias")}


def _plain(ours: str, hf: str, gguf: str) -> dict[str, Any]:
    return {f"{ours}{suffix and '.bias'}": where(f"model.layers.{{i}}.{hf}.{suffix or 'weight'}", f"blk.{{i}}.{gguf}.{suffix or 'weight'}")
            for suffix in ("", "bias")}


LLAMA = Family(
    name="llama", hf=(("llama", "LlamaForCausalLM"),), gguf=("llama",), config=LlamaConfig, model=model,
    brands=("Llama 2", "Llama 3", "Llama 3.1", "Llama 3.2", "Llama 3.3", "CodeLlama", "TinyLlama", "SmolLM", "SmolLM2"),
    tensors={
        "embed": where("model.embed_tokens.weight", "token_embd.weight"),
        "attn_norm": where("model.layers.{i}.input_layernorm.weight", "blk.{i}.attn_norm.weight"),
        **_projection("q", "attn_q", 0, "heads"), **_projection("k", "attn_k", 1, "kv_heads"),
        **_projection("v", "attn_v", 2, None), **_plain("attn.o", "self_attn.o_proj", "attn_output"),
        "ffn_norm": where("model.layers.{i}.post_attention_layernorm.weight", "blk.{i}.ffn_norm.weight"),
        **_plain("ffn.gate", "mlp.gate_proj", "ffn_gate"), **_plain("ffn.up", "mlp.up_proj", "ffn_up"),
        **_plain("ffn.down", "mlp.down_proj", "ffn_down"),
        "norm": where("model.norm.weight", "output_norm.weight"),
        "head": where("lm_head.weight", "output.weight"),
        "rope_freqs": where((), "rope_freqs.weight"),
    },
    dropped={r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq": "computed from rope_theta"},
)
FAMILIES = (LLAMA,)
