"""Mixtral: Mistral whose MLP is eight experts, of which two work for each token (Jiang et al. 2024).

In a GGUF it is arch llama with experts, which the llama family reads.
"""
from __future__ import annotations

from typing import Any

from uaii.frontend import blocks
from uaii.frontend.build import Build
from uaii.frontend.common import DROPPED, llama_names
from uaii.frontend.config import POSITIVE, key
from uaii.frontend.families.mistral import MistralConfig
from uaii.frontend.family import Family
from uaii.frontend.mixture import ROUTER_TRAINING, ExpertConfig, expert_names, mixture
from uaii.frontend.rope import rope_keys
from uaii.frontend.window import window_keys
from uaii.ir.ops import Add


class MixtralConfig(ExpertConfig, MistralConfig):
    """Source: transformers configuration_mixtral.py. An absent sliding_window is none."""

    eps: float = key("rms_norm_eps", kind=POSITIVE, default=1e-5)
    rope: Any = rope_keys(theta=1e6)
    windows: tuple[int, ...] = window_keys(lambda c, i: True, layer_types=False)
    experts: int = key(("num_local_experts", "num_experts"), default=8)
    experts_used: int = key("num_experts_per_tok", default=2)
    inert = ROUTER_TRAINING


def model(c: MixtralConfig, b: Build) -> None:
    ids, keep, step = blocks.inputs(b)
    x = blocks.embed(b, c, ids)
    for i in blocks.layers(c):
        with b.scope(f"layers.{i}"):
            h = b.rms_norm(x, "attn_norm", c.eps, i)
            q, k, v = blocks.rotated_heads(b, c, h, i, step, c.rope, False)
            a = blocks.attend(b, i, step, q, k, v, scale=c.head_dim ** -0.5, window=c.windows[i])
            x = Add(x, b.linear(a, "attn.o", c.width, i, False)).out
            h = b.rms_norm(x, "ffn_norm", c.eps, i)
            x = Add(x, mixture(b, c, h, i, c.ffn, top_k=c.experts_used)).out
    x = b.rms_norm(x, "norm", c.eps)
    blocks.result(b, blocks.head(b, c, blocks.last(b, x, keep)))


MIXTRAL = Family(
    name="mixtral", hf=(("mixtral", "MixtralForCausalLM"),), gguf=(), config=MixtralConfig, model=model,
    brands=("Mixtral 8x7B", "Mixtral 8x22B"), dropped=DROPPED,
    tensors={**{k: w for k, w in llama_names(permuted=True).items() if not k.startswith("ffn.")},
             **expert_names("block_sparse_moe.experts.{j}.{}", "block_sparse_moe.gate", ("w1", "w3", "w2"))},
)
FAMILIES = (MIXTRAL,)
