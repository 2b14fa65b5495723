"""Ministral 3 (text): Mistral's layer with YaRN, and queries that grow with the logarithm of their position.

In a GGUF it is arch mistral3, which Mistral Small 3.x and Devstral files name too.
"""
from __future__ import annotations

from uaii.frontend import blocks
from uaii.frontend.build import Build
from uaii.frontend.common import DROPPED, WINDOW_IGNORED, DecoderConfig, equal_split, llama_names
from uaii.frontend.config import COUNT, FLAG, LENGTH, POSITIVE, REQUIRED, key, scalar_of
from uaii.frontend.family import Family
from uaii.frontend.temperature import tempered_rope_keys
from uaii.frontend.tensors import where
from uaii.frontend.window import window_keys
from uaii.ir.ops import Add

SILENT = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16384, "beta_fast": 32.0,
          "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}


class Ministral3Config(DecoderConfig):
    """Source: transformers configuration_ministral3.py; llama.cpp src/models/mistral3.cpp, where no layer has a window."""

    kv_heads: int = key("num_key_value_heads", "attention.head_count_kv", default=8, gguf_default=scalar_of("heads"))
    head_dim: int = key("head_dim", "attention.key_length", default=128, gguf_default=equal_split)
    max_positions: int = key("max_position_embeddings", "context_length", LENGTH, default=262144, gguf_default=REQUIRED)
    eps: float = key("rms_norm_eps", "attention.layer_norm_rms_epsilon", POSITIVE, default=1e-5, gguf_default=REQUIRED)
    act: str = blocks.activation("hidden_act", gguf="silu", default="silu")
    rope, temperature = tempered_rope_keys(theta=10000.0, absent=SILENT)
    windows: tuple[int, ...] = window_keys(lambda c, i: True, layer_types=False)
    bias: bool | None = key((), kind=FLAG, default=False, gguf_default=None)  # a GGUF's tensors say
    experts: int = key((), "expert_count", COUNT, default=0, one_of=(0,))
    experts_used: int = key((), "expert_used_count", COUNT, default=0, one_of=(0,))
    inert = WINDOW_IGNORED


def model(c: Ministral3Config, b: Build) -> None:
    ids, keep, step = blocks.inputs(b)
    factors = blocks.temperature(b, step, c.temperature)
    x = blocks.embed(b, c, ids)
    for i in blocks.layers(c):
        with b.scope(f"layers.{i}"):
            h = b.rms_norm(x, "attn_norm", c.eps, i)
            q, k, v = blocks.heads(b, c, h, i, c.bias)
            q, k = (blocks.rotated(b, c, y, step, c.rope) for y in (blocks.tempered(b, q, factors), k))
            a = blocks.attend(b, i, step, q, k, v, scale=c.head_dim ** -0.5, window=c.windows[i])
            x = Add(x, b.linear(a, "attn.o", c.width, i, c.bias)).out
            h = b.rms_norm(x, "ffn_norm", c.eps, i)
            x = Add(x, blocks.gated_mlp(b, h, i, c.ffn, c.act, c.bias)).out
    x = b.rms_norm(x, "norm", c.eps)
    blocks.result(b, blocks.head(b, c, blocks.last(b, x, keep)))


MINISTRAL3 = Family(
    name="ministral3", hf=(("ministral3", "Ministral3ForCausalLM"),), gguf=("mistral3",), config=Ministral3Config, model=model,
    brands=("Ministral 3", "Mistral Small 3 (GGUF)", "Devstral Small (GGUF)"),
    tensors={**llama_names(permuted=True), "rope_freqs": where((), "rope_freqs.weight")}, dropped=DROPPED,
)
FAMILIES = (MINISTRAL3,)
