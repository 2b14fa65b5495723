"""OLMo 1 and 1.7: norms without parameters, and q, k and v clipped where the checkpoint says so (Groeneveld et al. 2024)."""
from __future__ import annotations

from typing import Any

from uaii.frontend import blocks
from uaii.frontend.build import Build
from uaii.frontend.common import DROPPED, WINDOW_IGNORED, DecoderConfig, llama_names
from uaii.frontend.config import FLAG, POSITIVE, REQUIRED, Config, Entry, key
from uaii.frontend.family import Family
from uaii.frontend.rope import rope_keys
from uaii.ir.core import Value
from uaii.ir.known import known
from uaii.ir.ops import Add, Clamp, SplitHeads


class Clip(Entry):
    """The limit of q, k and v, None for none: null or absent in a folder, 0 or absent under the key `gguf` of a GGUF."""

    def __init__(self, gguf: str | None) -> None:
        self.gguf = gguf

    def keys(self, fmt: str) -> tuple[str, ...]:
        return ("clip_qkv",) if fmt == "hf" else (self.gguf,) if self.gguf else ()

    def read(self, c: Config) -> float | None:
        if not self.keys(c.fmt):
            return None
        name = self.keys(c.fmt)[0]
        said = c.raw(name)
        off = said is None or (c.fmt == "gguf" and said == 0)
        return None if off else known(POSITIVE.check(said, name, c), c.at(name))


class OlmoConfig(DecoderConfig):
    """Source: transformers configuration_olmo.py, modeling_olmo.py (eps is fixed there); llama.cpp src/models/olmo.cpp."""

    head_dim: int = key("head_dim", "attention.key_length", default=lambda c: c.width // c.heads)
    eps: float = key((), "attention.layer_norm_epsilon", POSITIVE, default=1e-5, gguf_default=REQUIRED)
    act: str = blocks.activation("hidden_act", gguf="silu", default="silu")
    rope: Any = rope_keys(theta=10000.0)
    qkv_bias: bool | None = key("attention_bias", kind=FLAG, default=False, gguf_default=None)  # a GGUF's tensors say
    out_bias: bool = key("attention_bias", kind=FLAG, default=False)
    clip: Any = Clip("attention.clamp_kqv")
    inert = WINDOW_IGNORED


def model(c: OlmoConfig, b: Build) -> None:
    def clipped(x: Value) -> Value:
        return x if c.clip is None else Clamp(x, limit=c.clip).out

    ids, keep, step = blocks.inputs(b)
    x = blocks.embed(b, c, ids)
    for i in blocks.layers(c):
        with b.scope(f"layers.{i}"):
            h = b.layer_norm(x, "attn_norm", c.eps, i)
            q, k, v = (SplitHeads(clipped(b.linear(h, f"attn.{name}", n * c.head_dim, i, c.qkv_bias)), n=n).out
                       for name, n in (("q", c.heads), ("k", c.kv_heads), ("v", c.kv_heads)))
            q, k = blocks.rotated(b, c, q, step, c.rope), blocks.rotated(b, c, k, step, c.rope)
            a = blocks.attend(b, i, step, q, k, v, scale=c.head_dim ** -0.5)
            x = Add(x, b.linear(a, "attn.o", c.width, i, c.out_bias)).out
            h = b.layer_norm(x, "ffn_norm", c.eps, i)
            x = Add(x, blocks.gated_mlp(b, h, i, c.ffn, c.act, False)).out
    x = b.layer_norm(x, "norm", c.eps)
    blocks.result(b, blocks.head(b, c, blocks.last(b, x, keep)))


OLMO = Family(
    name="olmo", hf=(("olmo", "OlmoForCausalLM"),), gguf=("olmo",), config=OlmoConfig, model=model,
    brands=("OLMo 1B", "OLMo 7B", "OLMo 1.7"), dropped=DROPPED,
    tensors={k: w for k, w in llama_names(permuted=True).items() if k not in ("attn_norm", "ffn_norm", "norm")},
)
FAMILIES = (OLMO,)
