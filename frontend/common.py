"""What most decoder families share as data: the usual config keys, and the usual names of tensors."""
from __future__ import annotations

from typing import Any

from uaii.frontend.config import COUNT, FLAG, LAYERS, LENGTH, REQUIRED, Config, key, scalar_of
from uaii.frontend.rotary_width import rotary_width
from uaii.frontend.tensors import At, Rows, Undo, Unpermute, Where, where
from uaii.ir.known import plain


def equal_split(c: Any) -> Any:
    """The default head size: the width over the heads."""
    return c.width // c.heads


def four_widths(c: Any) -> Any:
    """The usual width of an MLP that is not gated."""
    return 4 * c.width


class DecoderConfig(Config):
    """Sizes that nearly every family spells alike. A family redefines an entry to change it, or sets it to None to drop it."""

    width: int = key("hidden_size", "embedding_length")
    layers: int = key("num_hidden_layers", "block_count", LAYERS)
    heads: int = key("num_attention_heads", "attention.head_count")
    kv_heads: int = key("num_key_value_heads", "attention.head_count_kv", default=scalar_of("heads"), null=scalar_of("heads"))
    head_dim: int = key("head_dim", "attention.key_length", default=equal_split, null=equal_split)
    value_dim: int = key((), "attention.value_length", default=scalar_of("head_dim"))
    rotary_dim: int = rotary_width()
    ffn: int = key("intermediate_size", "feed_forward_length")
    vocab: int = key("vocab_size", default=0, gguf_default=0)
    max_positions: int = key("max_position_embeddings", "context_length", LENGTH, default=2048, gguf_default=REQUIRED)
    rope: Any = None  # a family that rotates declares it
    tied: bool = key("tie_word_embeddings", kind=FLAG, default=False, gguf_default=True)
    causal: bool = key((), "attention.causal", FLAG, default=True, one_of=(True,))
    predicting: int = key((), "nextn_predict_layers", COUNT, default=0, one_of=(0,))  # layers at the end, for further tokens

    def context(self) -> int:
        limit = int(plain(self.max_positions))
        return int(self.rope.reach(limit)) if self.rope is not None else limit

    def check(self) -> None:
        self.need(self.value_dim == self.head_dim, "attention.value_length", "differs from attention.key_length")


LAYER = "model.layers.{i}."
ENDINGS = (("", "weight"), (".bias", "bias"))


def pair(ours: str, hf: str, gguf: str, stem: str = LAYER) -> dict[str, Where]:
    """Weight and bias of a linear or a LayerNorm, stored as they are: `hf` follows `stem`, `gguf` follows blk.{i}."""
    return {f"{ours}{ending}": where(f"{stem}{hf}.{word}", f"blk.{{i}}.{gguf}.{word}") for ending, word in ENDINGS}


def outer(ours: str, hf: str, gguf: str) -> dict[str, Where]:
    """Weight and bias that belong to no layer, stored as they are."""
    return {f"{ours}{ending}": where(f"{hf}.{word}", f"{gguf}.{word}") for ending, word in ENDINGS}


def norm(ours: str, hf: str, gguf: str) -> dict[str, Where]:
    """A norm's weight, stored as it is."""
    return {ours: where(f"model.layers.{{i}}.{hf}.weight", f"blk.{{i}}.{gguf}.weight")}


def qkv_rows(c: Any) -> tuple[int, int, int]:
    """Rows of q, k and v where they are stacked in one tensor."""
    return c.heads * c.head_dim, c.kv_heads * c.head_dim, c.kv_heads * c.head_dim


def fused_qkv(hf: str) -> dict[str, Where]:
    """q, k, v as rows of one tensor, in a GGUF alone too; llama.cpp's converter leaves their order."""
    alone = projections(permuted=False)
    return {f"attn.{n}{ending}": where(At(f"{LAYER}{hf}.{word}", (Rows(i, qkv_rows),)), alone[f"attn.{n}{ending}"].gguf)
            for i, n in enumerate("qkv") for ending, word in ENDINGS}


def ffn_rows(c: Any) -> tuple[int, int]:
    """Rows of gate and up where they are stacked in one tensor."""
    return c.ffn, c.ffn


def fused_gate_up(hf: str = "mlp.gate_up_proj", gguf: str = "ffn_up") -> dict[str, Where]:
    """gate and up as rows of one tensor."""
    return {f"ffn.{n}": where(*(At(f"{stem}.weight", (Rows(i, ffn_rows),)) for stem in (LAYER + hf, f"blk.{{i}}.{gguf}")))
            for i, n in enumerate(("gate", "up"))}


def projections(*, permuted: bool, hf: str = "self_attn.{}_proj") -> dict[str, Where]:
    """q, k, v, each alone or as rows of a GGUF's fused attn_qkv; `permuted` if llama.cpp's converter reorders q and k."""
    out: dict[str, Where] = {}
    for index, (name, heads) in enumerate((("q", "heads"), ("k", "kv_heads"), ("v", ""))):
        undo: tuple[Undo, ...] = (Unpermute(heads),) if permuted and heads else ()
        for ending, word in (("", "weight"), (".bias", "bias")):
            out[f"attn.{name}{ending}"] = where(
                hf=f"model.layers.{{i}}.{hf.format(name)}.{word}",
                gguf=(At(f"blk.{{i}}.attn_{name}.{word}", undo),
                      At(f"blk.{{i}}.attn_qkv.{word}", (Rows(index, qkv_rows), *undo))))
    return out


def llama_names(*, permuted: bool) -> dict[str, Where]:
    """The tensors of a llama-shaped decoder."""
    return {
        "embed": where("model.embed_tokens.weight", "token_embd.weight"),
        **norm("attn_norm", "input_layernorm", "attn_norm"), **projections(permuted=permuted),
        **pair("attn.o", "self_attn.o_proj", "attn_output"), **norm("ffn_norm", "post_attention_layernorm", "ffn_norm"),
        **pair("ffn.gate", "mlp.gate_proj", "ffn_gate"), **pair("ffn.up", "mlp.up_proj", "ffn_up"),
        **pair("ffn.down", "mlp.down_proj", "ffn_down"),
        "norm": where("model.norm.weight", "output_norm.weight"),
        "head": where("lm_head.weight", "output.weight"),
    }


# Tensors that older checkpoints carry and every family recomputes.
DROPPED = {r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq": "computed from rope_theta"}

# For the `inert` of a family whose architecture has no window in llama.cpp, whatever the file says.
WINDOW_IGNORED = {"attention.sliding_window": "llama.cpp gives this architecture no window"}
