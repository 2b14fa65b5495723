"""Gemma 2: norms before and after each half of a layer, capped scores and logits, every other layer slides (Gemma Team 2024b)."""
from __future__ import annotations

from typing import Any

from uaii.frontend import blocks
from uaii.frontend.build import Build
from uaii.frontend.common import DROPPED, norm
from uaii.frontend.config import POSITIVE, SIZE, key, scalar_of
from uaii.frontend.families.gemma import GemmaBase, embed, gemma_names
from uaii.frontend.family import Family
from uaii.frontend.rope import rope_keys
from uaii.frontend.window import PATTERN, all_but_every, window_keys
from uaii.ir.ops import Add


def query_scalar(largest: int) -> Any:
    """The number whose inverse root scales the scores. A GGUF does not hold it: llama.cpp takes width / heads for the
    generation's model of `largest` layers, which differs from its head size."""
    return key("query_pre_attn_scalar", kind=POSITIVE, default=256.0,
               gguf_default=lambda c: c.width // c.heads if c.layers == largest else c.head_dim)


class Gemma2Config(GemmaBase):
    """Source: transformers configuration_gemma2.py; llama.cpp src/models/gemma2.cpp."""

    kv_heads: int = key("num_key_value_heads", "attention.head_count_kv", default=4, gguf_default=scalar_of("heads"))
    act: str = blocks.activation("hidden_activation", gguf="gelu_tanh", default="gelu_pytorch_tanh")
    rope: Any = rope_keys(theta=10000.0)
    rope_sliding: float = key((), "rope.freq_base_swa", POSITIVE, default=lambda c: c.rope.theta)
    windows: tuple[int, ...] = window_keys(all_but_every(2), gguf=("attention.sliding_window", PATTERN), absent=4096)
    window_again: int | None = key("sliding_window_size", default=None, null=None)
    scalar: float = query_scalar(largest=46)
    attn_cap: float = key("attn_logit_softcapping", "attn_logit_softcapping", POSITIVE, default=50.0, null=0.0)
    final_cap: float = key("final_logit_softcapping", "final_logit_softcapping", POSITIVE, default=30.0, null=0.0)

    inert = {"hidden_act": "hidden_activation is read instead"}

    def check(self) -> None:
        super().check()
        self.need(self.rope_sliding == self.rope.theta, "rope.freq_base_swa", "sliding layers have the base of the others")
        name = "sliding_window" if self.fmt == "hf" else "attention.sliding_window"
        self.need(not self.has(name) or SIZE.fits(self.raw(name)), name, "sliding layers need a width")
        self.need(self.window_again in (None, *self.windows), "sliding_window_size", "sliding_window differs")


def model(c: Gemma2Config, b: Build) -> None:
    ids, keep, step = blocks.inputs(b)
    x = embed(b, c, ids)
    for i in blocks.layers(c):
        with b.scope(f"layers.{i}"):
            h = b.rms_norm(x, "attn_norm", c.eps, i, c.norm_offset)
            q, k, v = blocks.rotated_heads(b, c, h, i, step, c.rope, c.attention_bias)
            a = blocks.attend(b, i, step, q, k, v, scale=c.scalar ** -0.5, softcap=c.attn_cap, window=c.windows[i])
            a = b.linear(a, "attn.o", c.width, i, c.attention_bias)
            x = Add(x, b.rms_norm(a, "attn_post_norm", c.eps, i, c.norm_offset)).out
            h = b.rms_norm(x, "ffn_norm", c.eps, i, c.norm_offset)
            m = blocks.gated_mlp(b, h, i, c.ffn, c.act)
            x = Add(x, b.rms_norm(m, "ffn_post_norm", c.eps, i, c.norm_offset)).out
    x = b.rms_norm(x, "norm", c.eps, offset=c.norm_offset)
    blocks.result(b, blocks.capped(b, blocks.head(b, c, blocks.last(b, x, keep)), c.final_cap))


TENSORS = {
    **gemma_names(), **norm("attn_post_norm", "post_attention_layernorm", "post_attention_norm"),
    **norm("ffn_norm", "pre_feedforward_layernorm", "ffn_norm"),
    **norm("ffn_post_norm", "post_feedforward_layernorm", "post_ffw_norm"),
}
GEMMA2 = Family(name="gemma2", hf=(("gemma2", "Gemma2ForCausalLM"),), gguf=("gemma2",), config=Gemma2Config, model=model,
                tensors=TENSORS, dropped=DROPPED, brands=("Gemma 2",))
FAMILIES = (GEMMA2,)
