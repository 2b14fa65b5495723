"""gpt-oss: attention with sinks, every other layer slides, clamped gated experts with biases, in MXFP4 as published
(OpenAI 2025, gpt-oss-120b and gpt-oss-20b model card)."""
from __future__ import annotations

from typing import Any

from uaii.frontend import blocks
from uaii.frontend.build import Build
from uaii.frontend.common import DROPPED, LAYER, DecoderConfig, equal_split, llama_names
from uaii.frontend.config import FLAG, LENGTH, POSITIVE, REQUIRED, SIZE, WORD, Kind, key, scalar_of
from uaii.frontend.family import Family
from uaii.frontend.mixture import ROUTER_TRAINING, mixture
from uaii.frontend.pairs import Mxfp4
from uaii.frontend.rope import ORIGINAL, rope_keys
from uaii.frontend.tensors import Alternate, At, Transposed, Undo, Where, where
from uaii.frontend.window import PATTERN, all_but_every, window_keys
from uaii.ir.ops import Add

PACKED = Kind("an object", lambda v: isinstance(v, dict), lambda v: True)  # its words are the reader's, see hf_blockers.py
SILENT = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False, ORIGINAL: 4096}


class GptOssConfig(DecoderConfig):
    """Source: transformers configuration_gpt_oss.py; llama.cpp src/models/openai-moe.cpp, which clamps at 7 with 1.702."""

    kv_heads: int = key("num_key_value_heads", "attention.head_count_kv", default=8, gguf_default=scalar_of("heads"))
    head_dim: int = key("head_dim", "attention.key_length", default=64, gguf_default=equal_split)
    ffn: int = key("intermediate_size", "expert_feed_forward_length")
    ffn_again: int = key((), "feed_forward_length", default=scalar_of("ffn"))
    max_positions: int = key("max_position_embeddings", "context_length", LENGTH, default=131072, gguf_default=REQUIRED)
    eps: float = key("rms_norm_eps", "attention.layer_norm_rms_epsilon", POSITIVE, default=1e-5, gguf_default=REQUIRED)
    act: str = key("hidden_act", kind=WORD, default="silu", one_of=("silu",))
    rope: Any = rope_keys(theta=150000.0, absent=SILENT)
    rope_sliding: float = key((), "rope.freq_base_swa", POSITIVE, default=lambda c: c.rope.theta)
    original: int = key("initial_context_length", kind=LENGTH, default=0)
    windows: tuple[int, ...] = window_keys(all_but_every(2), gguf=("attention.sliding_window", PATTERN), absent=128,
                                           gguf_absent=0)
    tied: bool = key("tie_word_embeddings", kind=FLAG, default=False)
    attention_bias: bool | None = key("attention_bias", kind=FLAG, default=True, gguf_default=None)
    output_bias: bool = key("attention_bias", kind=FLAG, default=True)  # llama.cpp demands this one
    experts: int = key(("num_local_experts", "num_experts"), "expert_count", default=128, gguf_default=REQUIRED)
    experts_used: int = key("num_experts_per_tok", "expert_used_count", default=4, gguf_default=REQUIRED)
    used_again: int = key("experts_per_token", default=scalar_of("experts_used"))
    limit: float = key("swiglu_limit", kind=POSITIVE, default=7.0)
    alpha: float = key("swiglu_alpha", kind=POSITIVE, default=1.702)
    mxfp4: bool = key("quantization_config", kind=PACKED, default=False, null=False)
    inert = ROUTER_TRAINING

    def check(self) -> None:
        super().check()
        self.need(self.rope_sliding == self.rope.theta, "rope.freq_base_swa", "sliding layers have the base of the others")
        name = "sliding_window" if self.fmt == "hf" else "attention.sliding_window"
        said = SIZE.fits(self.raw(name)) if self.has(name) else self.fmt == "hf"
        self.need(said, name, "sliding layers need a width")
        scaled = dict(self.rope.scaling.params) if self.rope.scaling else {}
        self.need(self.original in (0, scaled.get(ORIGINAL)), "initial_context_length", "the rope record has another")
        self.need(self.ffn_again == self.ffn, "feed_forward_length", "expert_feed_forward_length differs; no layer is dense")
        self.need(self.used_again == self.experts_used, "experts_per_token", "num_experts_per_tok differs")


def model(c: GptOssConfig, b: Build) -> None:
    ids, keep, step = blocks.inputs(b)
    x = blocks.embed(b, c, ids)
    for i in blocks.layers(c):
        with b.scope(f"layers.{i}"):
            h = b.rms_norm(x, "attn_norm", c.eps, i)
            q, k, v = blocks.rotated_heads(b, c, h, i, step, c.rope, c.attention_bias)
            a = blocks.attend(b, i, step, q, k, v, scale=c.head_dim ** -0.5, window=c.windows[i],
                              sinks=b.weight("attn.sinks", c.heads, i=i))
            x = Add(x, b.linear(a, "attn.o", c.width, i, c.output_bias)).out
            h = b.rms_norm(x, "ffn_norm", c.eps, i)
            for part in ("moe.gate", "moe.down"):
                at = b.place_of(part, i)
                c.need(at is None or (at.pair is not None) == c.mxfp4, "quantization_config", f"layer {i} stores floats")
            x = Add(x, mixture(b, c, h, i, c.ffn, bias=True, top_k=c.experts_used, alpha=c.alpha, beta=1.0, limit=c.limit)).out
    x = b.rms_norm(x, "norm", c.eps)
    blocks.result(b, blocks.head(b, c, blocks.last(b, x, keep)))


def _experts() -> dict[str, Where]:
    """Folders hold gate and up as rows in turn, in MXFP4, or transposed in floats; a GGUF holds each alone."""
    out = {"moe.router": where(f"{LAYER}mlp.router.weight", "blk.{i}.ffn_gate_inp.weight"),
           "moe.router.bias": where(f"{LAYER}mlp.router.bias", "blk.{i}.ffn_gate_inp.bias")}
    for ours, theirs, index in (("gate", "gate_up", 0), ("up", "gate_up", 1), ("down", "down", None)):
        part: tuple[Undo, ...] = () if index is None else (Alternate(index),)
        stem, there = f"{LAYER}mlp.experts.{theirs}_proj", f"blk.{{i}}.ffn_{ours}_exps"
        out[f"moe.{ours}"] = where((At(f"{stem}_blocks", part, pair=Mxfp4()), At(stem, (Transposed(), *part))), f"{there}.weight")
        out[f"moe.{ours}.bias"] = where(At(f"{stem}_bias", part), f"{there}.bias")
    return out


GPT_OSS = Family(
    name="gpt_oss", hf=(("gpt_oss", "GptOssForCausalLM"),), gguf=("gpt-oss",), config=GptOssConfig, model=model,
    brands=("gpt-oss-20b", "gpt-oss-120b"), dropped=DROPPED,
    tensors={**{k: w for k, w in llama_names(permuted=False).items() if not k.startswith("ffn.")}, **_experts(),
             "ffn_norm": where(f"{LAYER}post_attention_layernorm.weight", "blk.{i}.post_attention_norm.weight"),
             "attn.sinks": where(f"{LAYER}self_attn.sinks", "blk.{i}.attn_sinks.weight")},
)
FAMILIES = (GPT_OSS,)
