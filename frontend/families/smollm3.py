"""SmolLM 3: llama's shape, but some layers know no positions (NoPE; Yang et al. 2025, arXiv 2501.18795)."""
from __future__ import annotations

from typing import Any

from uaii.frontend import blocks
from uaii.frontend.build import Build
from uaii.frontend.common import DROPPED, WINDOW_IGNORED, DecoderConfig, llama_names
from uaii.frontend.config import FLAG, LENGTH, POSITIVE, REQUIRED, SIZE, Config, Entry, key, scalar_of
from uaii.frontend.family import Family
from uaii.frontend.rope import rope_keys
from uaii.frontend.window import window_keys
from uaii.ir.diag import Malformed
from uaii.ir.known import known, plain
from uaii.ir.ops import Add


class RotatedLayers(Entry):
    """Which layers rotate: no_rope_layers, where 1 is a layer with rope, else all but every no_rope_layer_interval-th.

    A GGUF does not say; llama.cpp leaves out every fourth.
    """

    def keys(self, fmt: str) -> tuple[str, ...]:
        return ("no_rope_layers", "no_rope_layer_interval") if fmt == "hf" else ()

    def read(self, c: Config) -> tuple[bool, ...]:
        listed, every = c.raw("no_rope_layers"), "no_rope_layer_interval"
        count = int(plain(c.__dict__["layers"]))
        if listed is None:
            step = SIZE.check(c.raw(every), every, c) if c.has(every) else 4
            return tuple(known((i + 1) % step != 0, c.at(every)) for i in range(count))
        if not isinstance(listed, list) or len(listed) < count or any(v not in (0, 1) for v in listed):
            raise Malformed("F104", f"no_rope_layers must list 0 or 1 for {count} layers", c.at("no_rope_layers"))
        return tuple(known(bool(v), c.at("no_rope_layers")) for v in listed[:count])


def without_rope(c: Any, i: int) -> bool:
    """The layers that slide, if any do."""
    return not c.__dict__["rotated"][i]


class SmolLM3Config(DecoderConfig):
    """Source: transformers configuration_smollm3.py; llama.cpp src/models/smollm3.cpp, where no layer has a window."""

    kv_heads: int = key("num_key_value_heads", "attention.head_count_kv", default=4, gguf_default=scalar_of("heads"),
                        null=scalar_of("heads"))
    head_dim: int = key("head_dim", "attention.key_length", default=lambda c: c.width // c.heads)
    max_positions: int = key("max_position_embeddings", "context_length", LENGTH, default=32768, gguf_default=REQUIRED)
    tied: bool = key("tie_word_embeddings", kind=FLAG, default=True)
    eps: float = key("rms_norm_eps", "attention.layer_norm_rms_epsilon", POSITIVE, default=1e-6, gguf_default=REQUIRED)
    act: str = blocks.activation("hidden_act", gguf="silu", default="silu")
    rope: Any = rope_keys(theta=2000000.0)
    rotated: Any = RotatedLayers()
    windows: tuple[int, ...] = window_keys(without_rope, switch="use_sliding_window")
    qkv_bias: bool | None = key("attention_bias", kind=FLAG, default=False, gguf_default=None)  # a GGUF's tensors say
    out_bias: bool = key("attention_bias", kind=FLAG, default=False)
    mlp_bias: bool = key("mlp_bias", kind=FLAG, default=False)
    inert = {"max_window_layers": "left over from another family; transformers does not read it", **WINDOW_IGNORED}


def model(c: SmolLM3Config, b: Build) -> None:
    ids, keep, step = blocks.inputs(b)
    x = blocks.embed(b, c, ids)
    for i in blocks.layers(c):
        with b.scope(f"layers.{i}"):
            h = b.rms_norm(x, "attn_norm", c.eps, i)
            q, k, v = blocks.heads(b, c, h, i, c.qkv_bias)
            if c.rotated[i]:
                q, k = blocks.rotated(b, c, q, step, c.rope), blocks.rotated(b, c, k, step, c.rope)
            a = blocks.attend(b, i, step, q, k, v, scale=c.head_dim ** -0.5, window=c.windows[i])
            x = Add(x, b.linear(a, "attn.o", c.width, i, c.out_bias)).out
            h = b.rms_norm(x, "ffn_norm", c.eps, i)
            x = Add(x, blocks.gated_mlp(b, h, i, c.ffn, c.act, c.mlp_bias)).out
    x = b.rms_norm(x, "norm", c.eps)
    blocks.result(b, blocks.head(b, c, blocks.last(b, x, keep)))


SMOLLM3 = Family(
    name="smollm3", hf=(("smollm3", "SmolLM3ForCausalLM"),), gguf=("smollm3",), config=SmolLM3Config, model=model,
    brands=("SmolLM3",), tensors=llama_names(permuted=True), dropped=DROPPED,
)
FAMILIES = (SMOLLM3,)
