"""GPT-NeoX and Pythia: part of each head rotates, attention and MLP side by side, q, k, v stored head by head
(Black et al. 2022)."""
from __future__ import annotations

from typing import Any

from uaii.frontend import blocks
from uaii.frontend.build import Build
from uaii.frontend.common import ENDINGS, DecoderConfig, equal_split, outer, pair, qkv_rows
from uaii.frontend.config import FLAG, POSITIVE, REQUIRED, key, scalar_of
from uaii.frontend.family import Family
from uaii.frontend.rope import rope_keys
from uaii.frontend.rotary_width import FACTOR, rotary_width
from uaii.frontend.tensors import At, GroupedHeads, Rows, where
from uaii.ir.ops import Add


class GptNeoxConfig(DecoderConfig):
    """Source: transformers configuration_gpt_neox.py; llama.cpp src/models/gptneox.cpp."""

    kv_heads: int = key((), "attention.head_count_kv", default=scalar_of("heads"))
    head_dim: int = key((), "attention.key_length", default=equal_split)
    rotary_dim: int = rotary_width(0.25, "rotary_pct", restated=(FACTOR,))
    tied: bool = key("tie_word_embeddings", kind=FLAG, default=False)
    eps: float = key("layer_norm_eps", "attention.layer_norm_epsilon", POSITIVE, default=1e-5, gguf_default=REQUIRED)
    act: str = blocks.activation("hidden_act", gguf="gelu_tanh", default="gelu")
    rope: Any = rope_keys(10000.0, "rotary_emb_base", also=(FACTOR,))
    attention_bias: bool = key("attention_bias", kind=FLAG, default=True)
    parallel: bool = key("use_parallel_residual", "use_parallel_residual", FLAG, default=True, gguf_default=REQUIRED)
    inert = {"classifier_dropout": "training", "attention_probs_dropout_prob": "training",
             "hidden_dropout_prob": "training", "is_decoder": "transformers does not read it here"}


def model(c: GptNeoxConfig, b: Build) -> None:
    ids, keep, step = blocks.inputs(b)
    x = blocks.embed(b, c, ids)
    for i in blocks.layers(c):
        with b.scope(f"layers.{i}"):
            h = b.layer_norm(x, "attn_norm", c.eps, i)
            q, k, v = blocks.rotated_heads(b, c, h, i, step, c.rope, c.attention_bias)
            a = blocks.attend(b, i, step, q, k, v, scale=c.head_dim ** -0.5)
            y = Add(x, b.linear(a, "attn.o", c.width, i, c.attention_bias)).out
            h = b.layer_norm(x if c.parallel else y, "ffn_norm", c.eps, i)
            x = Add(y, blocks.mlp(b, h, i, c.ffn, c.act, True)).out
    x = b.layer_norm(x, "norm", c.eps)
    blocks.result(b, blocks.head(b, c, blocks.last(b, x, keep)))


STEM = "gpt_neox.layers.{i}."
GPT_NEOX = Family(
    name="gpt_neox", hf=(("gpt_neox", "GPTNeoXForCausalLM"),), gguf=("gptneox",), config=GptNeoxConfig, model=model,
    brands=("GPT-NeoX 20B", "Pythia", "RedPajama-INCITE", "StableLM 1 (alpha)", "Dolly v2"),
    tensors={
        "embed": where("gpt_neox.embed_in.weight", "token_embd.weight"),
        **pair("attn_norm", "input_layernorm", "attn_norm", STEM),
        **pair("ffn_norm", "post_attention_layernorm", "ffn_norm", STEM),
        **{f"attn.{part}{ending}": where(At(f"{STEM}attention.query_key_value.{word}", (GroupedHeads(part),)),
                                         At(f"blk.{{i}}.attn_qkv.{word}", (Rows(index, qkv_rows),)))
           for index, part in enumerate("qkv") for ending, word in ENDINGS},
        **pair("attn.o", "attention.dense", "attn_output", STEM), **pair("ffn.up", "mlp.dense_h_to_4h", "ffn_up", STEM),
        **pair("ffn.down", "mlp.dense_4h_to_h", "ffn_down", STEM), **outer("norm", "gpt_neox.final_layer_norm", "output_norm"),
        "head": where((At("embed_out.weight"), At("lm_head.weight")), "output.weight"),
    },
    dropped={r"gpt_neox\.layers\.\d+\.attention\.(bias|masked_bias)": "the causal mask, which attention has by itself",
             r"gpt_neox\.layers\.\d+\.attention\.rotary_emb\.inv_freq": "computed from the base of the rotation"},
)
FAMILIES = (GPT_NEOX,)
