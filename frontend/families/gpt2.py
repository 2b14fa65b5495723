"""GPT-2: learned positions, LayerNorm, fused q, k, v in weights stored [in, out] (Radford et al. 2019)."""
from __future__ import annotations

from typing import Any

from uaii.frontend import blocks
from uaii.frontend.build import Build
from uaii.frontend.common import ENDINGS, DecoderConfig, equal_split, four_widths, qkv_rows
from uaii.frontend.config import FLAG, LAYERS, LENGTH, POSITIVE, REQUIRED, key, scalar_of
from uaii.frontend.family import Family
from uaii.frontend.tensors import At, Rows, Transposed, Undo, Where
from uaii.ir.ops import Add


class Gpt2Config(DecoderConfig):
    """Source: transformers configuration_gpt2.py; llama.cpp src/models/gpt2.cpp."""

    width: int = key(("n_embd", "hidden_size"), "embedding_length")
    layers: int = key(("n_layer", "num_hidden_layers"), "block_count", LAYERS)
    heads: int = key(("n_head", "num_attention_heads"), "attention.head_count")
    kv_heads: int = key((), "attention.head_count_kv", default=scalar_of("heads"))
    head_dim: int = key((), "attention.key_length", default=equal_split)
    rotary_dim: Any = None
    ffn: int = key("n_inner", "feed_forward_length", default=four_widths, null=four_widths, gguf_default=REQUIRED)
    max_positions: int = key(("n_positions", "max_position_embeddings"), "context_length", LENGTH, default=1024,
                             gguf_default=REQUIRED)
    tied: bool = key("tie_word_embeddings", kind=FLAG, default=True)
    eps: float = key("layer_norm_epsilon", "attention.layer_norm_epsilon", POSITIVE, default=1e-5, gguf_default=REQUIRED)
    act: str = blocks.activation("activation_function", gguf="gelu_tanh", default="gelu_new")
    scaled: bool = key("scale_attn_weights", kind=FLAG, default=True)
    by_layer: bool = key("scale_attn_by_inverse_layer_idx", kind=FLAG, default=False)
    cross: bool = key("add_cross_attention", kind=FLAG, default=False, one_of=(False,))
    inert = {"n_ctx": "restates n_positions, which is what transformers reads",
             "reorder_and_upcast_attn": "an order of float operations: scores are computed in f32 anyway",
             "n_special": "another program's", "predict_special_tokens": "another program's",
             "summary_activation": "classification", "summary_first_dropout": "classification",
             "summary_proj_to_labels": "classification", "summary_type": "classification",
             "summary_use_proj": "classification"}


def model(c: Gpt2Config, b: Build) -> None:
    ids, keep, step = blocks.inputs(b)
    x = blocks.placed(b, c, blocks.embed(b, c, ids), step)
    for i in blocks.layers(c):
        scale = (c.head_dim ** -0.5 if c.scaled else 1.0) / (i + 1 if c.by_layer else 1)
        with b.scope(f"layers.{i}"):
            h = b.layer_norm(x, "attn_norm", c.eps, i)
            a = blocks.attend(b, i, step, *blocks.heads(b, c, h, i, True), scale=scale)
            x = Add(x, b.linear(a, "attn.o", c.width, i, True)).out
            h = b.layer_norm(x, "ffn_norm", c.eps, i)
            x = Add(x, blocks.mlp(b, h, i, c.ffn, c.act, True)).out
    x = b.layer_norm(x, "norm", c.eps)
    blocks.result(b, blocks.head(b, c, blocks.last(b, x, keep)))


def named(ours: str, hf: str, gguf: str, weight: tuple[Undo, ...] = (), both: tuple[Undo, ...] = ()) -> dict[str, Where]:
    """Weight and bias, under a name that folders write with and without `transformer.`.

    `weight` is what a folder did to the weight alone, `both` what folder and GGUF did to weight and bias.
    """
    return {f"{ours}{ending}": Where(
        tuple(At(f"{prefix}{hf}.{word}", (*(weight if not ending else ()), *both)) for prefix in ("transformer.", "")),
        (At(f"{gguf}.{word}", both),)) for ending, word in ENDINGS}


CONV1D = (Transposed(),)
NAMES = {
    **named("embed", "wte", "token_embd"), **named("positions", "wpe", "position_embd"),
    **named("attn_norm", "h.{i}.ln_1", "blk.{i}.attn_norm"), **named("ffn_norm", "h.{i}.ln_2", "blk.{i}.ffn_norm"),
    **{name: place for part, index in (("q", 0), ("k", 1), ("v", 2)) for name, place in named(
        f"attn.{part}", "h.{i}.attn.c_attn", "blk.{i}.attn_qkv", CONV1D, (Rows(index, qkv_rows),)).items()},
    **named("attn.o", "h.{i}.attn.c_proj", "blk.{i}.attn_output", CONV1D),
    **named("ffn.up", "h.{i}.mlp.c_fc", "blk.{i}.ffn_up", CONV1D),
    **named("ffn.down", "h.{i}.mlp.c_proj", "blk.{i}.ffn_down", CONV1D),
    **named("norm", "ln_f", "output_norm"),
    "head": Where((At("lm_head.weight"),), (At("output.weight"),)),
}
GPT2 = Family(
    name="gpt2", hf=(("gpt2", "GPT2LMHeadModel"),), gguf=("gpt2",), config=Gpt2Config, model=model,
    brands=("GPT-2", "DistilGPT2"), tensors=NAMES,
    dropped={r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)": "the causal mask, which attention has by itself"},
)
FAMILIES = (GPT2,)
