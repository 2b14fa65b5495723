"""StableLM 3B and 2: LayerNorm, a quarter of each head rotates, gated MLP; the 12B runs attention and MLP side by side
and norms each query and key head by itself (Bellagente et al. 2024)."""
from __future__ import annotations

from typing import Any

from uaii.frontend import blocks
from uaii.frontend.build import Build
from uaii.frontend.common import DROPPED, DecoderConfig, equal_split, outer, pair, projections
from uaii.frontend.config import FLAG, POSITIVE, REQUIRED, key, scalar_of
from uaii.frontend.family import Family
from uaii.frontend.rope import rope_keys
from uaii.frontend.rotary_width import FACTOR, rotary_width
from uaii.frontend.tensors import At, where
from uaii.ir.ops import Add


class StableLmConfig(DecoderConfig):
    """Source: transformers configuration_stablelm.py; llama.cpp src/models/stablelm.cpp, which goes by the tensors."""

    kv_heads: int = key("num_key_value_heads", "attention.head_count_kv", default=32, gguf_default=scalar_of("heads"))
    head_dim: int = key((), "attention.key_length", default=equal_split)
    rotary_dim: int = rotary_width(0.25)
    max_positions: int = key("max_position_embeddings", "context_length", default=4096, gguf_default=REQUIRED)
    tied: bool = key("tie_word_embeddings", kind=FLAG, default=False)
    eps: float = key("layer_norm_eps", "attention.layer_norm_epsilon", POSITIVE, default=1e-5, gguf_default=REQUIRED)
    act: str = blocks.activation("hidden_act", gguf="silu", default="silu")
    rope: Any = rope_keys(10000.0, also=(FACTOR,))
    qkv_bias: bool | None = key("use_qkv_bias", kind=FLAG, default=False, gguf_default=None)
    qk_norm: bool | None = key("qk_layernorm", kind=FLAG, default=False, gguf_default=None)
    parallel: bool | None = key("use_parallel_residual", kind=FLAG, default=False, gguf_default=None)
    inert = {"use_parallel_residual": "in a GGUF llama.cpp goes by the second norm"}


def model(c: StableLmConfig, b: Build) -> None:
    ids, keep, step = blocks.inputs(b)
    x = blocks.embed(b, c, ids)
    for i in blocks.layers(c):
        norms = c.qk_norm if c.qk_norm is not None else b.stores("attn.q_norm", "attn.k_norm", i=i)
        parallel = c.parallel if c.parallel is not None else not b.stores("ffn_norm", "ffn_norm.bias", i=i)
        with b.scope(f"layers.{i}"):
            h = b.layer_norm(x, "attn_norm", c.eps, i)
            q, k, v = blocks.heads(b, c, h, i, c.qkv_bias)
            if norms:
                q, k = (b.layer_norm(y, f"attn.{n}_norm", c.eps, i, per_head=True) for n, y in (("q", q), ("k", k)))
            q, k = blocks.rotated(b, c, q, step, c.rope), blocks.rotated(b, c, k, step, c.rope)
            a = blocks.attend(b, i, step, q, k, v, scale=c.head_dim ** -0.5)
            x = Add(x, b.linear(a, "attn.o", c.width, i, False)).out
            h = h if parallel else b.layer_norm(x, "ffn_norm", c.eps, i)
            x = Add(x, blocks.gated_mlp(b, h, i, c.ffn, c.act, False)).out
    x = b.layer_norm(x, "norm", c.eps)
    blocks.result(b, blocks.head(b, c, blocks.last(b, x, keep)))


STABLELM = Family(
    name="stablelm", hf=(("stablelm", "StableLmForCausalLM"),), gguf=("stablelm",), config=StableLmConfig, model=model,
    brands=("StableLM 3B", "StableLM 2 1.6B", "StableLM 2 12B", "Stable Code 3B", "Zephyr 3B"), dropped=DROPPED,
    tensors={
        "embed": where("model.embed_tokens.weight", "token_embd.weight"), **pair("attn_norm", "input_layernorm", "attn_norm"),
        **projections(permuted=False), **pair("attn.o", "self_attn.o_proj", "attn_output"),
        **{f"attn.{n}_norm": where(At(f"model.layers.{{i}}.self_attn.{n}_layernorm.norms.{{j}}.weight", stack=heads),
                                   f"blk.{{i}}.attn_{n}_norm.weight") for n, heads in (("q", "heads"), ("k", "kv_heads"))},
        **pair("ffn_norm", "post_attention_layernorm", "ffn_norm"), **pair("ffn.gate", "mlp.gate_proj", "ffn_gate"),
        **pair("ffn.up", "mlp.up_proj", "ffn_up"), **pair("ffn.down", "mlp.down_proj", "ffn_down"),
        **outer("norm", "model.norm", "output_norm"), "head": where("lm_head.weight", "output.weight"),
    },
)
FAMILIES = (STABLELM,)
