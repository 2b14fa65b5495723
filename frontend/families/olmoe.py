"""OLMoE: 64 experts of which eight work for each token, and q and k normed whole (Muennighoff et al. 2024)."""
from __future__ import annotations

from typing import Any

from uaii.frontend import blocks
from uaii.frontend.build import Build
from uaii.frontend.common import DROPPED, WINDOW_IGNORED, DecoderConfig, llama_names, norm
from uaii.frontend.config import FLAG, POSITIVE, REQUIRED, key
from uaii.frontend.families.olmo import Clip
from uaii.frontend.family import Family
from uaii.frontend.mixture import ROUTER_TRAINING, WEIGHTING_IGNORED, ExpertConfig, expert_names, grouping, mixture
from uaii.frontend.rope import rope_keys
from uaii.ir.core import Value
from uaii.ir.ops import Add, Clamp, SplitHeads


class OlmoeConfig(ExpertConfig, DecoderConfig):
    """Source: transformers configuration_olmoe.py; llama.cpp src/models/olmoe.cpp, which never renormalises nor clips, and
    whose files have a head of their own."""

    head_dim: int = key("head_dim", "attention.key_length", default=lambda c: c.width // c.heads)
    tied: bool = key("tie_word_embeddings", kind=FLAG, default=False)
    eps: float = key("rms_norm_eps", "attention.layer_norm_rms_epsilon", POSITIVE, default=1e-5, gguf_default=REQUIRED)
    act: str = blocks.activation("hidden_act", gguf="silu", default="silu")
    rope: Any = rope_keys(theta=10000.0)
    qkv_bias: bool | None = key("attention_bias", kind=FLAG, default=False, gguf_default=None)  # a GGUF's tensors say
    out_bias: bool = key("attention_bias", kind=FLAG, default=False)
    clip: Any = Clip(gguf=None)
    experts: int = key(("num_experts", "num_local_experts"), "expert_count", default=64, gguf_default=REQUIRED)
    experts_used: int = key("num_experts_per_tok", "expert_used_count", default=8, gguf_default=REQUIRED)
    renormalise: bool = key("norm_topk_prob", kind=FLAG, default=False)
    inert = ROUTER_TRAINING | WINDOW_IGNORED | WEIGHTING_IGNORED


def model(c: OlmoeConfig, b: Build) -> None:
    def split(x: Value, name: str, n: int, i: int, normed: str = "") -> Value:
        y = b.linear(x, name, n * c.head_dim, i, c.qkv_bias)
        y = b.rms_norm(y, normed, c.eps, i) if normed else y
        return SplitHeads(y if c.clip is None else Clamp(y, limit=c.clip).out, n=n).out

    ids, keep, step = blocks.inputs(b)
    x = blocks.embed(b, c, ids)
    for i in blocks.layers(c):
        with b.scope(f"layers.{i}"):
            h = b.rms_norm(x, "attn_norm", c.eps, i)
            q = blocks.rotated(b, c, split(h, "attn.q", c.heads, i, "attn.q_norm"), step, c.rope)
            k = blocks.rotated(b, c, split(h, "attn.k", c.kv_heads, i, "attn.k_norm"), step, c.rope)
            a = blocks.attend(b, i, step, q, k, split(h, "attn.v", c.kv_heads, i), scale=c.head_dim ** -0.5)
            x = Add(x, b.linear(a, "attn.o", c.width, i, c.out_bias)).out
            h = b.rms_norm(x, "ffn_norm", c.eps, i)
            y = mixture(b, c, h, i, c.ffn, top_k=c.experts_used, renormalise=c.renormalise, **grouping(c))
            x = Add(x, y).out
    x = b.rms_norm(x, "norm", c.eps)
    blocks.result(b, blocks.head(b, c, blocks.last(b, x, keep)))


OLMOE = Family(
    name="olmoe", hf=(("olmoe", "OlmoeForCausalLM"),), gguf=("olmoe",), config=OlmoeConfig, model=model,
    brands=("OLMoE-1B-7B",), dropped=DROPPED,
    tensors={**llama_names(permuted=False), **expert_names(), **norm("attn.q_norm", "self_attn.q_norm", "attn_q_norm"),
             **norm("attn.k_norm", "self_attn.k_norm", "attn_k_norm")},
)
FAMILIES = (OLMOE,)
