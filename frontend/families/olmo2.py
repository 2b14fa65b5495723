"""OLMo 2 and 3: each sublayer's output is normed, not its input, and q and k are normed whole (OLMo team 2024, 2025).

OLMo 3 adds a sliding window on three layers of four, which rotate without the scaling that the full layers have. Both
are arch olmo2 in a GGUF, told apart by the window.
"""
from __future__ import annotations

from typing import Any

from uaii.frontend import blocks
from uaii.frontend.build import Build
from uaii.frontend.common import DROPPED, DecoderConfig, llama_names, norm
from uaii.frontend.config import FLAG, POSITIVE, REQUIRED, Config, key
from uaii.frontend.family import Family
from uaii.frontend.layer_rope import SWA_BASE, LayerRope, LayerRopeKeys, layer_ropes
from uaii.frontend.rope import GGUF_THETA, Rope, RopeKeys
from uaii.frontend.window import PATTERN, all_but_every, window_keys
from uaii.ir.core import Value
from uaii.ir.ops import Add, SplitHeads


class Ropes(LayerRopeKeys):
    """Per layer its rotation; a folder of OLMo 2 has one for all, spelled as usual."""

    one = RopeKeys(10000.0)

    def keys(self, fmt: str) -> tuple[str, ...]:
        return self.one.keys(fmt) if fmt == "hf" else super().keys(fmt)

    def read(self, c: Config) -> tuple[Rope, ...]:
        return (self.one.read(c),) * len(c.__dict__["windows"]) if c.fmt == "hf" else super().read(c)


class Olmo2Config(DecoderConfig):
    """Source: transformers configuration_olmo2.py; llama.cpp src/models/olmo2.cpp, whose files have their own head."""

    head_dim: int = key("head_dim", "attention.key_length", default=lambda c: c.width // c.heads)
    tied: bool = key("tie_word_embeddings", kind=FLAG, default=False)
    eps: float = key("rms_norm_eps", "attention.layer_norm_rms_epsilon", POSITIVE, default=1e-5, gguf_default=REQUIRED)
    act: str = blocks.activation("hidden_act", gguf="silu", default="silu")
    windows: Any = window_keys(all_but_every(4), gguf=("attention.sliding_window", PATTERN), layer_types=False)
    ropes: Any = Ropes(LayerRope(GGUF_THETA), LayerRope(GGUF_THETA), None)
    qkv_bias: bool | None = key("attention_bias", kind=FLAG, default=False, gguf_default=None)  # a GGUF's tensors say
    out_bias: bool = key("attention_bias", kind=FLAG, default=False)

    def check(self) -> None:
        super().check()
        self.need(self.fmt == "gguf" or not any(self.windows), "sliding_window", "OLMo 2 has no window, OLMo 3 has")
        base = self.raw("rope.freq_base") if self.has("rope.freq_base") else GGUF_THETA
        self.need(self.raw(SWA_BASE) in (None, base), SWA_BASE, "llama.cpp rotates all layers of olmo2 by rope.freq_base")
        self.need(not any(self.windows) or self.raw("rope.scaling.attn_factor") in (None, 1.0), "rope.scaling.attn_factor",
                  "llama.cpp applies it to full layers only")


class Olmo3Config(Olmo2Config):
    """Source: transformers configuration_olmo3.py. rope_theta and rope_scaling are for the full layers."""

    windows: Any = window_keys(all_but_every(4), absent=4096)
    ropes: Any = layer_ropes(LayerRope(500000.0, "rope_theta", "rope_scaling"), LayerRope(500000.0))

    def check(self) -> None:
        DecoderConfig.check(self)
        self.need(not self.has("sliding_window") or self.raw("sliding_window") is not None, "sliding_window",
                  "three layers of four slide, unless layer_types says otherwise")


def model(c: Olmo2Config, b: Build) -> None:
    def split(x: Value, name: str, n: int, i: int, normed: str = "") -> Value:
        y = b.linear(x, name, n * c.head_dim, i, c.qkv_bias)
        return SplitHeads(b.rms_norm(y, normed, c.eps, i) if normed else y, n=n).out

    ids, keep, step = blocks.inputs(b)
    x = blocks.embed(b, c, ids)
    for i in blocks.layers(c):
        with b.scope(f"layers.{i}"):
            q, k = split(x, "attn.q", c.heads, i, "attn.q_norm"), split(x, "attn.k", c.kv_heads, i, "attn.k_norm")
            q, k = blocks.rotated(b, c, q, step, c.ropes[i]), blocks.rotated(b, c, k, step, c.ropes[i])
            v = split(x, "attn.v", c.kv_heads, i)
            a = blocks.attend(b, i, step, q, k, v, scale=c.head_dim ** -0.5, window=c.windows[i])
            x = Add(x, b.rms_norm(b.linear(a, "attn.o", c.width, i, c.out_bias), "attn_post_norm", c.eps, i)).out
            x = Add(x, b.rms_norm(blocks.gated_mlp(b, x, i, c.ffn, c.act, False), "ffn_post_norm", c.eps, i)).out
    x = b.rms_norm(x, "norm", c.eps)
    blocks.result(b, blocks.head(b, c, blocks.last(b, x, keep)))


OLMO2 = Family(
    name="olmo2", hf=(("olmo2", "Olmo2ForCausalLM"),), gguf=("olmo2",), config=Olmo2Config, model=model,
    brands=("OLMo 2", "OLMo 3 (GGUF)"), dropped=DROPPED,
    tensors={**{k: w for k, w in llama_names(permuted=False).items() if k not in ("attn_norm", "ffn_norm")},
             **norm("attn.q_norm", "self_attn.q_norm", "attn_q_norm"), **norm("attn.k_norm", "self_attn.k_norm", "attn_k_norm"),
             **norm("attn_post_norm", "post_attention_layernorm", "post_attention_norm"),
             **norm("ffn_post_norm", "post_feedforward_layernorm", "post_ffw_norm")},
)
OLMO3 = OLMO2.but(name="olmo3", hf=(("olmo3", "Olmo3ForCausalLM"),), gguf=(), config=Olmo3Config, brands=("OLMo 3",))
FAMILIES = (OLMO2, OLMO3)
