"""Falcon: 7B (one key head, one norm for both branches), 40B (groups of heads, a norm per branch), and the sequential
form of the small RW models (Almazrouei et al. 2023)."""
from __future__ import annotations

from typing import Any

from uaii.frontend import blocks
from uaii.frontend.build import Build
from uaii.frontend.common import ENDINGS, DecoderConfig, equal_split, four_widths, outer, pair, qkv_rows
from uaii.frontend.config import FLAG, POSITIVE, REQUIRED, SIZE, Config, Entry, key
from uaii.frontend.family import Family
from uaii.frontend.rope import rope_keys
from uaii.frontend.tensors import At, GroupedHeads, Rows, where
from uaii.ir.known import known
from uaii.ir.ops import Add

NEW = "new_decoder_architecture"


class KeyHeads(Entry):
    """Key heads: num_kv_heads in the new architecture (null or absent: all), else 1 if multi_query, else all."""

    def keys(self, fmt: str) -> tuple[str, ...]:
        return ("num_kv_heads", "multi_query") if fmt == "hf" else ("attention.head_count_kv",)

    def read(self, c: Config) -> Any:
        stated = self.keys(c.fmt)[0]
        said = c.raw(stated)
        heads = c.__dict__["heads"] if said is None else known(SIZE.check(said, stated, c), c.at(stated))
        if c.fmt == "gguf" or c.raw(NEW):
            return heads
        multi = c.raw("multi_query") if c.has("multi_query") else True
        if multi is None or not FLAG.check(multi, "multi_query", c):
            c.need(heads == c.__dict__["heads"], stated, "without multi_query each head has a key head of its own")
            return heads
        return known(1, c.at("multi_query"))


class FalconConfig(DecoderConfig):
    """Source: transformers configuration_falcon.py and modeling_falcon.py; llama.cpp src/models/falcon.cpp."""

    width: int = key(("hidden_size", "n_embed"), "embedding_length")
    kv_heads: Any = KeyHeads()
    head_dim: int = key((), "attention.key_length", default=equal_split)
    ffn: int = key("ffn_hidden_size", "feed_forward_length", default=four_widths, null=four_widths, gguf_default=REQUIRED)
    tied: bool = key("tie_word_embeddings", kind=FLAG, default=True)
    eps: float = key("layer_norm_epsilon", "attention.layer_norm_epsilon", POSITIVE, default=1e-5, gguf_default=REQUIRED)
    act: str = blocks.activation("activation", gguf="gelu_tanh", default="gelu")
    rope: Any = rope_keys(10000.0)
    bias: bool = key("bias", kind=FLAG, default=False, null=False)
    new: bool = key(NEW, kind=FLAG, default=False, null=False)
    parallel: bool = key("parallel_attn", kind=FLAG, default=True, null=False, gguf_default=True)
    norms: int = key("num_ln_in_parallel_attn", default=lambda c: 2 if c.new else 1, null=lambda c: 2 if c.new else 1,
                     one_of=(1, 2))
    alibi: bool = key("alibi", kind=FLAG, default=False, null=False, one_of=(False,))
    after_norm: bool = key("apply_residual_connection_post_layernorm", kind=FLAG, default=False, one_of=(False,))
    inert = {"ff_factor": "restates ffn_hidden_size", "tensor_data_layout": "llama.cpp does not read it"}

    def check(self) -> None:
        super().check()
        self.need(self.heads % self.kv_heads == 0, "num_kv_heads", f"{self.heads} heads do not share {self.kv_heads}")
        self.need(self.parallel or not self.new, "parallel_attn", f"transformers has no sequential form of {NEW}")
        self.need(self.norms == 1 or self.new or not self.parallel, "num_ln_in_parallel_attn", f"needs {NEW}")


def model(c: FalconConfig, b: Build) -> None:
    ids, keep, step = blocks.inputs(b)
    x = blocks.embed(b, c, ids)
    for i in blocks.layers(c):
        two = c.new and c.norms == 2 if c.fmt == "hf" else b.stores("ln_attn", "ln_attn.bias", i=i)
        with b.scope(f"layers.{i}"):
            h = b.layer_norm(x, "ln_attn" if two else "attn_norm", c.eps, i)
            q, k, v = blocks.rotated_heads(b, c, h, i, step, c.rope, c.bias)
            a = blocks.attend(b, i, step, q, k, v, scale=c.head_dim ** -0.5)
            y = Add(x, b.linear(a, "attn.o", c.width, i, c.bias)).out
            if two:
                h = b.layer_norm(x, "ln_mlp", c.eps, i)
            elif not c.parallel:
                h = b.layer_norm(y, "ffn_norm", c.eps, i)
            x = Add(y, blocks.mlp(b, h, i, c.ffn, c.act, c.bias)).out
    x = b.layer_norm(x, "norm", c.eps)
    blocks.result(b, blocks.head(b, c, blocks.last(b, x, keep)))


STEM = "transformer.h.{i}."
FALCON = Family(
    name="falcon", hf=(("falcon", "FalconForCausalLM"),), gguf=("falcon",), config=FalconConfig, model=model,
    brands=("Falcon 7B", "Falcon 40B", "Falcon 180B", "Falcon 2 11B", "Falcon RW"),
    tensors={
        "embed": where("transformer.word_embeddings.weight", "token_embd.weight"),
        **pair("attn_norm", "input_layernorm", "attn_norm", STEM), **pair("ln_attn", "ln_attn", "attn_norm_2", STEM),
        **pair("ln_mlp", "ln_mlp", "attn_norm", STEM), **pair("ffn_norm", "post_attention_layernorm", "ffn_norm", STEM),
        **{f"attn.{part}{ending}": where(At(f"{STEM}self_attention.query_key_value.{word}", (GroupedHeads(part),)),
                                         At(f"blk.{{i}}.attn_qkv.{word}", (Rows(index, qkv_rows),)))
           for index, part in enumerate("qkv") for ending, word in ENDINGS},
        **pair("attn.o", "self_attention.dense", "attn_output", STEM),
        **pair("ffn.up", "mlp.dense_h_to_4h", "ffn_up", STEM), **pair("ffn.down", "mlp.dense_4h_to_h", "ffn_down", STEM),
        **outer("norm", "transformer.ln_f", "output_norm"), "head": where("lm_head.weight", "output.weight"),
    },
    dropped={r"transformer\.h\.\d+\.self_attention\.rotary_emb\.inv_freq": "computed from rope_theta"},
)
FAMILIES = (FALCON,)
