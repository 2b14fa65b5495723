"""Command R and Aya: one LayerNorm feeds attention and MLP, neighbours rotate, the logits are scaled (Cohere 2024)."""
from __future__ import annotations

from typing import Any

from uaii.frontend import blocks
from uaii.frontend.build import Build
from uaii.frontend.common import DROPPED, DecoderConfig, equal_split, norm, pair, projections
from uaii.frontend.config import FLAG, LENGTH, POSITIVE, REQUIRED, key, scalar_of
from uaii.frontend.family import Family
from uaii.frontend.rope import rope_keys
from uaii.frontend.tensors import Where, where
from uaii.ir.core import Value
from uaii.ir.known import plain
from uaii.ir.ops import Add, Scale


class CohereBase(DecoderConfig):
    """What the generations spell alike."""

    head_dim: int = key("head_dim", "attention.key_length", default=equal_split)
    max_positions: int = key("max_position_embeddings", "context_length", LENGTH, default=8192, gguf_default=REQUIRED)
    tied: bool = key("tie_word_embeddings", kind=FLAG, default=True)
    eps: float = key("layer_norm_eps", "attention.layer_norm_epsilon", POSITIVE, default=1e-5, gguf_default=REQUIRED)
    act: str = blocks.activation("hidden_act", gguf="silu", default="silu")
    attention_bias: bool | None = key("attention_bias", kind=FLAG, default=False, gguf_default=None)


class CohereConfig(CohereBase):
    """Source: transformers configuration_cohere.py; llama.cpp src/models/command-r.cpp, which goes by the tensors.

    Older publications state their real length as model_max_length, and a shorter max_position_embeddings.
    """

    longest: int = key("model_max_length", kind=LENGTH, default=scalar_of("max_positions"))
    rope: Any = rope_keys(500000.0)
    qk_norm: bool | None = key("use_qk_norm", kind=FLAG, default=False, gguf_default=None)
    logit_scale: float = key("logit_scale", "logit_scale", POSITIVE, default=0.0625, gguf_default=1.0)

    def context(self) -> int:
        return max(super().context(), int(plain(self.longest)))


def model(c: CohereConfig, b: Build) -> None:
    ids, keep, step = blocks.inputs(b)
    x = blocks.embed(b, c, ids)
    for i in blocks.layers(c):
        with b.scope(f"layers.{i}"):
            h = b.layer_norm(x, "attn_norm", c.eps, i)
            q, k, v = blocks.heads(b, c, h, i, c.attention_bias)
            if c.qk_norm if c.qk_norm is not None else b.place_of("attn.q_norm", i) is not None:
                q, k = (b.layer_norm(y, f"attn.{n}_norm", c.eps, i, per_head=True) for n, y in (("q", q), ("k", k)))
            q, k = (blocks.rotated(b, c, y, step, c.rope, interleaved=True) for y in (q, k))
            a = blocks.attend(b, i, step, q, k, v, scale=c.head_dim ** -0.5)
            x = parallel(b, c, x, h, a, i)
    finish(b, c, x, keep)


def parallel(b: Build, c: Any, x: Value, h: Value, a: Value, i: int) -> Value:
    """x + o(a) + mlp(h), where h is the norm that attention has read too."""
    y = Add(b.linear(a, "attn.o", c.width, i, c.attention_bias), blocks.gated_mlp(b, h, i, c.ffn, c.act)).out
    return Add(x, y).out


def finish(b: Build, c: Any, x: Value, keep: Value) -> None:
    """Norm, head, and logits times logit_scale."""
    x = b.layer_norm(x, "norm", c.eps)
    logits = blocks.head(b, c, blocks.last(b, x, keep))
    with b.scope("logit_scale"):
        blocks.result(b, Scale(logits, by=c.logit_scale).out)


def names() -> dict[str, Where]:
    """Both generations' tensors; a GGUF has neither a head of its own nor a bias of the output projection."""
    attn_o = {n: where(place.hf, place.gguf if n == "attn.o" else ()) for n, place in
              pair("attn.o", "self_attn.o_proj", "attn_output").items()}
    return {
        "embed": where("model.embed_tokens.weight", "token_embd.weight"), **norm("attn_norm", "input_layernorm", "attn_norm"),
        **projections(permuted=False), **attn_o, **norm("ffn.gate", "mlp.gate_proj", "ffn_gate"),
        **norm("ffn.up", "mlp.up_proj", "ffn_up"), **norm("ffn.down", "mlp.down_proj", "ffn_down"),
        "norm": where("model.norm.weight", "output_norm.weight"), "head": where("lm_head.weight"),
    }


COHERE = Family(
    name="cohere", hf=(("cohere", "CohereForCausalLM"),), gguf=("command-r",), config=CohereConfig, model=model, dropped=DROPPED,
    brands=("Command R", "Command R+", "Aya 23", "Aya Expanse"),
    tensors={**names(), **norm("attn.q_norm", "self_attn.q_norm", "attn_q_norm"),
             **norm("attn.k_norm", "self_attn.k_norm", "attn_k_norm")},
)
FAMILIES = (COHERE,)
