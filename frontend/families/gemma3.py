"""Gemma 3, text: Gemma 2 with normed queries and keys instead of capped scores, five sliding layers to one full, which has
a rotation of its own (Gemma Team 2025)."""
from __future__ import annotations

from uaii.frontend import blocks
from uaii.frontend.build import Build
from uaii.frontend.common import DROPPED, norm
from uaii.frontend.config import LENGTH, NUMBER, POSITIVE, REQUIRED, SIZE, key, scalar_of
from uaii.frontend.families import gemma2
from uaii.frontend.families.gemma import GemmaBase, embed
from uaii.frontend.family import Family
from uaii.frontend.layer_rope import LayerRope, layer_ropes
from uaii.frontend.rope import Rope
from uaii.frontend.tensors import where
from uaii.frontend.window import PATTERN, all_but_every, window_keys
from uaii.ir.ops import Add


class Gemma3Config(GemmaBase):
    """Source: transformers configuration_gemma3.py (Gemma3TextConfig); llama.cpp src/models/gemma3.cpp."""

    kv_heads: int = key("num_key_value_heads", "attention.head_count_kv", default=4, gguf_default=scalar_of("heads"))
    max_positions: int = key("max_position_embeddings", "context_length", LENGTH, default=131072, gguf_default=REQUIRED)
    act: str = blocks.activation("hidden_activation", gguf="gelu_tanh", default="gelu_pytorch_tanh")
    windows: tuple[int, ...] = window_keys(all_but_every(6, "sliding_window_pattern"), hf=("sliding_window_pattern",),
                                           gguf=("attention.sliding_window", PATTERN), absent=4096, gguf_absent=0)
    saved_pattern: int | None = key("_sliding_window_pattern", default=None, null=None)
    ropes: tuple[Rope, ...] = layer_ropes(full=LayerRope(1e6, "rope_theta", "rope_scaling"),
                                          sliding=LayerRope(1e4, "rope_local_base_freq"), gguf_sliding=1e4)
    scalar: float = gemma2.query_scalar(largest=62)
    attn_cap: float | None = key("attn_logit_softcapping", kind=NUMBER, default=None, null=None, one_of=(None,))
    final_cap: float = key("final_logit_softcapping", "final_logit_softcapping", POSITIVE, default=0.0, null=0.0)

    inert = {"hidden_act": "hidden_activation is read instead"}

    def check(self) -> None:
        super().check()
        self.need(self.fmt == "gguf" or not self.has("sliding_window") or SIZE.fits(self.raw("sliding_window")),
                  "sliding_window", "sliding layers need a width")
        pattern = self.raw("sliding_window_pattern") if self.has("sliding_window_pattern") else 6
        self.need(self.saved_pattern in (None, pattern) or self.raw("layer_types") is not None, "_sliding_window_pattern",
                  f"without layer_types, every {pattern}th layer is full whatever this key says")


def model(c: Gemma3Config, b: Build) -> None:
    ids, keep, step = blocks.inputs(b)
    x = embed(b, c, ids)
    for i in blocks.layers(c):
        with b.scope(f"layers.{i}"):
            h = b.rms_norm(x, "attn_norm", c.eps, i, c.norm_offset)
            q, k, v = blocks.heads(b, c, h, i, c.attention_bias)
            q = blocks.rotated(b, c, b.rms_norm(q, "attn.q_norm", c.eps, i, c.norm_offset), step, c.ropes[i])
            k = blocks.rotated(b, c, b.rms_norm(k, "attn.k_norm", c.eps, i, c.norm_offset), step, c.ropes[i])
            a = blocks.attend(b, i, step, q, k, v, scale=c.scalar ** -0.5, window=c.windows[i])
            a = b.linear(a, "attn.o", c.width, i, c.attention_bias)
            x = Add(x, b.rms_norm(a, "attn_post_norm", c.eps, i, c.norm_offset)).out
            h = b.rms_norm(x, "ffn_norm", c.eps, i, c.norm_offset)
            m = blocks.gated_mlp(b, h, i, c.ffn, c.act)
            x = Add(x, b.rms_norm(m, "ffn_post_norm", c.eps, i, c.norm_offset)).out
    x = b.rms_norm(x, "norm", c.eps, offset=c.norm_offset)
    blocks.result(b, blocks.capped(b, blocks.head(b, c, blocks.last(b, x, keep)), c.final_cap))


TENSORS = {
    **gemma2.TENSORS, **norm("attn.q_norm", "self_attn.q_norm", "attn_q_norm"),
    **norm("attn.k_norm", "self_attn.k_norm", "attn_k_norm"), "head": where("lm_head.weight", "output.weight"),
}
GEMMA3 = Family(name="gemma3", hf=(("gemma3_text", "Gemma3ForCausalLM"),), gguf=("gemma3",), config=Gemma3Config, model=model,
                tensors=TENSORS, dropped=DROPPED, brands=("Gemma 3",))
FAMILIES = (GEMMA3,)
