"""Tiny GPT-2 checkpoints: both spellings of names and sizes, scales, activations, biases, ties."""
from __future__ import annotations

import re
from typing import Any

import numpy as np
from gguf_names import Converted
from tiny_models import Arrays, Case, Config, Shape

BASE: Config = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 128,
    "n_ctx": 128, "vocab_size": 199, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
    "reorder_and_upcast_attn": False, "torch_dtype": "float32",
}
V5 = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "max_position_embeddings": 128,
      **dict.fromkeys(("n_embd", "n_layer", "n_head", "n_positions", "n_ctx"), ...)}


def shapes(c: Config) -> dict[str, Shape]:
    """Names and shapes of a GPT-2 folder: linears are [in, out]."""
    h, layers = c.get("n_embd", c.get("hidden_size")), c.get("n_layer", c.get("num_hidden_layers"))
    ffn, rows = c.get("n_inner") or 4 * h, c.get("n_positions", c.get("max_position_embeddings"))
    out: dict[str, Shape] = {"transformer.wte.weight": (c["vocab_size"], h), "transformer.wpe.weight": (rows, h)}
    for i in range(layers):
        for name, shape in {"attn.c_attn": (h, 3 * h), "attn.c_proj": (h, h), "mlp.c_fc": (h, ffn), "mlp.c_proj": (ffn, h),
                            "ln_1": (h,), "ln_2": (h,)}.items():
            out[f"transformer.h.{i}.{name}.weight"], out[f"transformer.h.{i}.{name}.bias"] = shape, shape[-1:]
    return out | {"transformer.ln_f.weight": (h,), "transformer.ln_f.bias": (h,)}


def bare(c: Config) -> dict[str, Shape]:
    """The same as the first release wrote it: no prefix."""
    return {name.removeprefix("transformer."): shape for name, shape in shapes(c).items()}


PLAIN = Case("f32", BASE, shapes)
SHORT = PLAIN.but(lengths=(40,))
CASES = (
    PLAIN,
    SHORT.set("bf16-shards", torch_dtype="bfloat16").but(dtype="BF16", shards=2),
    SHORT.set("v5-names", **V5),
    SHORT.set("bare-config", activation_function=..., layer_norm_epsilon=..., reorder_and_upcast_attn=..., torch_dtype=...),
    SHORT.but(name="bare-names", shapes=bare),
    SHORT.set("inner", n_inner=96),
    SHORT.set("inner-null", n_inner=None),
    SHORT.set("not-scaled", scale_attn_weights=False, n_head=8),
    SHORT.set("scaled-by-layer", scale_attn_by_inverse_layer_idx=True),
    SHORT.set("upcast", reorder_and_upcast_attn=True),
    SHORT.set("untied", tie_word_embeddings=False).but(extra={"lm_head.weight": (199, 64)}),
    SHORT.set("tied-own-head").but(extra={"lm_head.weight": (199, 64)}),
    SHORT.set("act-gelu", activation_function="gelu"),
    SHORT.set("act-relu", activation_function="relu"),
    SHORT.set("large-eps", layer_norm_epsilon=0.5),
    PLAIN.set("full-context", n_positions=100, n_ctx=100).but(lengths=(76,)),
)


# --- the same weights as llama.cpp's converter writes them

def _turned(case: Case) -> Arrays:
    """Linears as [out, in]."""
    return {n: x.T if re.search(r"\.(c_attn|c_proj|c_fc)\.weight", n) else x for n, x in case.tensors().items()}


def _swapped(case: Case, tensors: Arrays) -> Arrays:
    """q, k and v in the order k, v, q."""
    return {n: np.roll(x, case.config["n_embd"], axis=0) if "c_attn" in n else x for n, x in tensors.items()}


def _metadata(c: Config) -> dict[str, Any]:
    return {"context_length": c["n_ctx"], "embedding_length": c["n_embd"], "block_count": c["n_layer"],
            "feed_forward_length": c.get("n_inner") or 4 * c["n_embd"], "attention.head_count": c["n_head"],
            "attention.layer_norm_epsilon": c["layer_norm_epsilon"]}


NAMES = {"ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm",
         "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
OUTSIDE = {"transformer.wte": "token_embd", "transformer.wpe": "position_embd", "transformer.ln_f": "output_norm",
           "lm_head": "output"}
GGUF = Converted("gpt2", NAMES, _metadata, permuted=False, stem=r"transformer\.h\.(\d+)\.", outside=OUTSIDE,
                 changed=_turned, broken=_swapped)
GGUF_CASES = (SHORT, SHORT.set("inner", n_inner=96, layer_norm_epsilon=0.5),
              SHORT.set("untied", tie_word_embeddings=False).but(extra={"lm_head.weight": (199, 64)}))
