"""Command R7B and Command A: three layers of four slide and rotate, the fourth sees all and has no positions (Cohere 2025)."""
from __future__ import annotations

from typing import Any

from uaii.frontend import blocks
from uaii.frontend.build import Build
from uaii.frontend.common import DROPPED
from uaii.frontend.config import FLAG, NUMBER, POSITIVE, REQUIRED, SIZE, WORD, key
from uaii.frontend.families.cohere import CohereBase, finish, names, parallel
from uaii.frontend.family import Family
from uaii.frontend.rope import rope_keys
from uaii.frontend.window import PATTERN, all_but_every, window_keys


class Cohere2Config(CohereBase):
    """Source: transformers configuration_cohere2.py; llama.cpp src/models/cohere2.cpp.

    From order on: settings of the publisher's own code that transformers does not read.
    """

    rope: Any = rope_keys(10000.0)
    windows: tuple[int, ...] = window_keys(all_but_every(4, "sliding_window_pattern"), hf=("sliding_window_pattern",),
                                           gguf=("attention.sliding_window", PATTERN), absent=4096, gguf_absent=0)
    logit_scale: float = key("logit_scale", "logit_scale", POSITIVE, default=0.0625, gguf_default=REQUIRED)
    order: str = key("order_of_interleaved_layers", kind=WORD, default="local_attn_first", one_of=("local_attn_first",))
    every: int | None = key("layer_switch", kind=SIZE, default=None)
    pairing: str = key("position_embedding_type", kind=WORD, default="rope_gptj", one_of=("rope_gptj",))
    rotary_share: float = key("rotary_pct", kind=NUMBER, default=1.0, one_of=(1.0,))
    shared: bool = key("use_embedding_sharing", kind=FLAG, default=True, one_of=(True,))
    gated: bool = key("use_gated_activation", kind=FLAG, default=True, one_of=(True,))
    one_norm: bool = key("use_parallel_block", kind=FLAG, default=True, one_of=(True,))
    qk_norm: bool = key("use_qk_norm", kind=FLAG, default=False, one_of=(False,))
    inert = {"rope.freq_base_swa": "llama.cpp rotates this architecture's sliding layers by rope.freq_base"}

    def check(self) -> None:
        super().check()
        window = "sliding_window" if self.fmt == "hf" else "attention.sliding_window"
        missing = not any(self.windows) and not (self.raw(window) if self.has(window) else self.fmt == "hf")
        self.need(not missing, window, "layers rotate only where they slide")
        self.need(self.head_dim * self.heads == self.width, "head_dim", "transformers takes the width over the heads")
        pattern = self.raw("sliding_window_pattern") or 4
        self.need(self.every in (None, pattern), "layer_switch", f"sliding_window_pattern is {pattern}")


def model(c: Cohere2Config, b: Build) -> None:
    ids, keep, step = blocks.inputs(b)
    x = blocks.embed(b, c, ids)
    for i in blocks.layers(c):
        with b.scope(f"layers.{i}"):
            h = b.layer_norm(x, "attn_norm", c.eps, i)
            q, k, v = blocks.heads(b, c, h, i, c.attention_bias)
            if c.windows[i]:
                q, k = (blocks.rotated(b, c, y, step, c.rope, interleaved=True) for y in (q, k))
            a = blocks.attend(b, i, step, q, k, v, scale=c.head_dim ** -0.5, window=c.windows[i])
            x = parallel(b, c, x, h, a, i)
    finish(b, c, x, keep)


COHERE2 = Family(
    name="cohere2", hf=(("cohere2", "Cohere2ForCausalLM"),), gguf=("cohere2",), config=Cohere2Config, model=model,
    dropped=DROPPED, brands=("Command R7B", "Command A", "Tiny Aya"), tensors=names(),
)
FAMILIES = (COHERE2,)
