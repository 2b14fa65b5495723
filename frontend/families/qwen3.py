"""Qwen 3: grouped-query attention whose queries and keys are normed per head before they rotate (Yang et al. 2025)."""
from __future__ import annotations

from uaii.frontend import blocks
from uaii.frontend.build import Build
from uaii.frontend.common import DROPPED, WINDOW_IGNORED, llama_names, norm
from uaii.frontend.config import FLAG, key
from uaii.frontend.families.qwen2 import Qwen2Config
from uaii.frontend.family import Family
from uaii.ir.ops import Add


class Qwen3Config(Qwen2Config):
    """Source: transformers configuration_qwen3.py; llama.cpp src/models/qwen3.cpp, where no layer has a window."""

    head_dim: int = key("head_dim", "attention.key_length", default=128, gguf_default=lambda c: c.width // c.heads)
    qkv_bias: bool | None = key("attention_bias", kind=FLAG, default=False, gguf_default=None)  # a GGUF's tensors say
    out_bias: bool = key("attention_bias", kind=FLAG, default=False)
    inert = WINDOW_IGNORED


def model(c: Qwen3Config, b: Build) -> None:
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
            x = Add(x, blocks.gated_mlp(b, h, i, c.ffn, c.act, False)).out
    x = b.rms_norm(x, "norm", c.eps)
    blocks.result(b, blocks.head(b, c, blocks.last(b, x, keep)))


QWEN3 = Family(
    name="qwen3", hf=(("qwen3", "Qwen3ForCausalLM"),), gguf=("qwen3",), config=Qwen3Config, model=model,
    brands=("Qwen3", "DeepSeek-R1-0528-Qwen3"), dropped=DROPPED,
    tensors={**llama_names(permuted=False), **norm("attn.q_norm", "self_attn.q_norm", "attn_q_norm"),
             **norm("attn.k_norm", "self_attn.k_norm", "attn_k_norm")},
)
FAMILIES = (QWEN3,)
