"""Tiny llama checkpoints: storage types, head shapes, biases, ties, activations, and rope in every spelling."""
from __future__ import annotations

from typing import Any

import numpy as np
from tiny_models import Arrays, Case, Config, Shape, interleaved_rows

BASE: Config = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 199,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False, "torch_dtype": "float32",
}
ORIGINAL = "original_max_position_embeddings"


def shapes(c: Config) -> dict[str, Shape]:
    """Names and shapes of a llama folder, from the published layout."""
    h, ffn, heads = c["hidden_size"], c["intermediate_size"], c["num_attention_heads"]
    d = c.get("head_dim") or h // heads
    q, kv = heads * d, (c.get("num_key_value_heads") or heads) * d
    linears = {"self_attn.q_proj": (q, h), "self_attn.k_proj": (kv, h), "self_attn.v_proj": (kv, h),
               "self_attn.o_proj": (h, q), "mlp.gate_proj": (ffn, h), "mlp.up_proj": (ffn, h), "mlp.down_proj": (h, ffn)}
    out: dict[str, Shape] = {"model.embed_tokens.weight": (c["vocab_size"], h), "model.norm.weight": (h,)}
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        out |= {f"{at}input_layernorm.weight": (h,), f"{at}post_attention_layernorm.weight": (h,)}
        for name, shape in linears.items():
            out[f"{at}{name}.weight"] = shape
            if c.get("attention_bias" if "attn" in name else "mlp_bias"):
                out[f"{at}{name}.bias"] = shape[:1]
    if not c.get("tie_word_embeddings"):
        out["lm_head.weight"] = (c["vocab_size"], h)
    return out


PLAIN = Case("f32", BASE, shapes)
HEAD = {"lm_head.weight": (199, 64)}
SHORT = PLAIN.but(lengths=(40,))


def _rope(name: str, record: Config, limit: int = 256, **more: Any) -> Case:
    return PLAIN.set(name, rope_scaling=record, max_position_embeddings=limit, **more)


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, ORIGINAL: 64}
YARN = {"rope_type": "yarn", "factor": 4.0, ORIGINAL: 32}
CASES = (
    PLAIN,
    PLAIN.set("bf16-shards", torch_dtype="bfloat16").but(dtype="BF16", shards=2),
    SHORT.set("f16", torch_dtype="float16").but(dtype="F16"),
    SHORT.set("bf16-f32-norms").but(dtype="BF16", norms="F32"),
    SHORT.set("all-heads-kv", num_key_value_heads=...),
    SHORT.set("one-kv-head", num_key_value_heads=1),
    SHORT.set("wide-heads", head_dim=32),
    SHORT.set("narrow-heads", head_dim=8),
    SHORT.set("head-dim-null", head_dim=None),
    SHORT.set("attention-bias", attention_bias=True),
    SHORT.set("mlp-bias", mlp_bias=True),
    SHORT.set("both-biases", attention_bias=True, mlp_bias=True).but(dtype="BF16"),
    SHORT.set("tied", tie_word_embeddings=True),
    SHORT.set("tied-own-head", tie_word_embeddings=True).but(extra=HEAD),
    SHORT.set("tie-absent", tie_word_embeddings=...),
    SHORT.set("bare-config", tie_word_embeddings=..., attention_bias=..., mlp_bias=..., rms_norm_eps=..., hidden_act=...,
              rope_theta=..., torch_dtype=...),
    SHORT.set("large-eps", rms_norm_eps=0.5),
    SHORT.set("inner-width-is-vocabulary", intermediate_size=PLAIN.config["vocab_size"]),  # no product is the head by its width
    *(SHORT.set(f"act-{a}", hidden_act=a) for a in
      ("gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "relu", "relu2", "quick_gelu", "swish")),
    # Where the base is stated: transformers takes rope_parameters, then the top level, then 10000.
    PLAIN.set("theta-top", rope_theta=1e6),
    PLAIN.set("theta-parameters", rope_theta=..., rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
    PLAIN.set("theta-both", rope_theta=1e4, rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
    PLAIN.set("theta-absent", rope_theta=..., rope_scaling=None),
    PLAIN.set("theta-outside", rope_theta=1e6, rope_parameters={"rope_type": "default"}),
    PLAIN.set("theta-integer", rope_theta=500000),
    _rope("linear-type", {"type": "linear", "factor": 4.0}, 64),
    _rope("linear-rope-type", {"rope_type": "linear", "factor": 2.5}, 64),
    PLAIN.set("linear-parameters", rope_theta=..., max_position_embeddings=64,
              rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 2e4}),
    _rope("dynamic-type", {"type": "dynamic", "factor": 4.0}, 32).but(by_length=True, lengths=(12, 40, 100)),
    _rope("dynamic-long", {"type": "dynamic", "factor": 4.0}).but(by_length=True, lengths=(600,)),
    PLAIN.set("dynamic-parameters", rope_theta=..., max_position_embeddings=32,
              rope_parameters={"rope_type": "dynamic", "factor": 5.0, "rope_theta": 1e6}).but(by_length=True),
    _rope("llama3-rope-type", {"rope_type": "llama3", **LLAMA3}, rope_theta=500000.0),
    _rope("llama3-type", {"type": "llama3", **LLAMA3}),
    _rope("llama3-both-words", {"type": "llama3", "rope_type": "llama3", **LLAMA3}),
    PLAIN.set("llama3-parameters", rope_theta=..., rope_parameters={"rope_type": "llama3", **LLAMA3, "rope_theta": 5e5}),
    _rope("llama3-original-on-top", {"rope_type": "llama3", **LLAMA3}, **{ORIGINAL: 32}),
    _rope("yarn", YARN),
    _rope("yarn-type", {"type": "yarn", "factor": 4.0, ORIGINAL: 32}),
    PLAIN.set("yarn-parameters", rope_theta=..., rope_parameters={**YARN, "rope_theta": 5e4}),
    _rope("yarn-not-truncated", {**YARN, "truncate": False}),
    _rope("yarn-truncated", {**YARN, "truncate": True}),
    _rope("yarn-attention-factor", {**YARN, "attention_factor": 1.5}),
    _rope("yarn-mscale-one", {**YARN, "mscale": 0.7}),
    _rope("yarn-mscale-both", {**YARN, "mscale": 0.7, "mscale_all_dim": 1.4}),
    _rope("yarn-betas", {**YARN, "beta_fast": 4.0, "beta_slow": 0.5, "truncate": False}),
    _rope("yarn-no-original", {"rope_type": "yarn", "factor": 4.0}, 64),
    _rope("yarn-original-on-top", YARN, **{ORIGINAL: 64}),
)

# Keys whose effect needs another value than their kind suggests: {key: (changes that make it matter, other value)}.
MUTATIONS: dict[str, tuple[Config, Any]] = {"head_dim": ({}, 32), "num_key_value_heads": ({}, 1), "rms_norm_eps": ({}, 0.3)}


# --- the same weights as llama.cpp's converter writes them

GGUF_NAMES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}
GGUF_OUTSIDE = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
                "lm_head.weight": "output.weight"}


def gguf_metadata(c: Config) -> dict[str, Any]:
    """The keys of a converted llama, without the architecture's prefix."""
    d = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    return {"context_length": c["max_position_embeddings"], "embedding_length": c["hidden_size"],
            "block_count": c["num_hidden_layers"], "feed_forward_length": c["intermediate_size"],
            "attention.head_count": c["num_attention_heads"], "attention.head_count_kv": c["num_key_value_heads"],
            "attention.layer_norm_rms_epsilon": float(c["rms_norm_eps"]), "rope.dimension_count": d,
            "attention.key_length": d, "attention.value_length": d, "rope.freq_base": float(c["rope_theta"])}


def gguf_tensors(case: Case, *, permuted: bool = True, fused: bool = False) -> Arrays:
    """The case's tensors under llama.cpp's names; q and k rows interleaved unless not `permuted`; q, k, v as one when `fused`."""
    c, out = case.config, {}
    heads = {"attn_q": c["num_attention_heads"], "attn_k": c["num_key_value_heads"]}
    for name, x in case.tensors().items():
        if name in GGUF_OUTSIDE:
            out[GGUF_OUTSIDE[name]] = x
            continue
        _, _, i, inner = name.split(".", 3)
        part, kind = inner.rsplit(".", 1)
        theirs = GGUF_NAMES[part]
        out[f"blk.{i}.{theirs}.{kind}"] = interleaved_rows(x, heads[theirs]) if permuted and theirs in heads else x
    return _fuse(out) if fused else out


def _fuse(tensors: Arrays) -> Arrays:
    out = {n: x for n, x in tensors.items() if ".attn_k." not in n and ".attn_v." not in n and ".attn_q." not in n}
    for name in (n for n in tensors if ".attn_q." in n):
        parts = [tensors[name.replace("attn_q", f"attn_{p}")] for p in "qkv"]
        out[name.replace("attn_q", "attn_qkv")] = np.concatenate(parts)
    return out


def rope_freqs(c: Config) -> np.ndarray:
    """llama.cpp's rope_freqs tensor for a llama3 record: what each frequency is divided by."""
    r, d = c["rope_scaling"], c["hidden_size"] // c["num_attention_heads"]
    wave = 2 * np.pi * c["rope_theta"] ** (np.arange(0, d, 2) / d)
    low, high = r[ORIGINAL] / r["low_freq_factor"], r[ORIGINAL] / r["high_freq_factor"]
    smooth = (r[ORIGINAL] / wave - r["low_freq_factor"]) / (r["high_freq_factor"] - r["low_freq_factor"])
    between = 1 / ((1 - smooth) / r["factor"] + smooth)
    return np.where(wave < high, 1.0, np.where(wave > low, r["factor"], between)).astype(np.float32)
