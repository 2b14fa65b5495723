"""Tiny gpt-oss checkpoints: sinks, windows by turns, YaRN with and without whole bounds, clamps that bite, floats and MXFP4."""
from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf_names import Converted
from gguf_twin import sizes
from tiny_models import Arrays, Case, Config, Shape, rounded, values

ORIGINAL = "original_max_position_embeddings"
YARN: Config = {"rope_type": "yarn", "factor": 4.0, ORIGINAL: 32, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
BASE: Config = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 199,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 150000.0, "rope_scaling": YARN, "sliding_window": 8,
    "num_local_experts": 4, "num_experts_per_tok": 2, "swiglu_limit": 7.0, "hidden_act": "silu", "attention_bias": True,
    "tie_word_embeddings": False, "torch_dtype": "float32",
}
# As published: the words of config.json of gpt-oss-20b.
MXFP4: Config = {"quant_method": "mxfp4", "modules_to_not_convert": [
    "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
FULL, SLIDES = "full_attention", "sliding_attention"


def shapes(c: Config) -> dict[str, Shape]:
    """Names and shapes of a folder, in floats or as published."""
    h, ffn, x = c["hidden_size"], c["intermediate_size"], c.get("num_local_experts", c.get("num_experts", 128))
    heads, d, kv = c["num_attention_heads"], c.get("head_dim", 64), c.get("num_key_value_heads", 8)
    out: dict[str, Shape] = {"model.embed_tokens.weight": (c["vocab_size"], h), "model.norm.weight": (h,)}
    for i in range(c["num_hidden_layers"]):
        at, experts = f"model.layers.{i}.", f"model.layers.{i}.mlp.experts."
        out |= {f"{at}input_layernorm.weight": (h,), f"{at}post_attention_layernorm.weight": (h,),
                f"{at}self_attn.sinks": (heads,), f"{at}mlp.router.weight": (x, h), f"{at}mlp.router.bias": (x,),
                f"{experts}gate_up_proj_bias": (x, 2 * ffn), f"{experts}down_proj_bias": (x, h)}
        for name, rows, width in (("q", heads * d, h), ("k", kv * d, h), ("v", kv * d, h), ("o", h, heads * d)):
            out[f"{at}self_attn.{name}_proj.weight"] = (rows, width)
            if c.get("attention_bias", True):
                out[f"{at}self_attn.{name}_proj.bias"] = (rows,)
        for name, rows, width in (("gate_up", 2 * ffn, h), ("down", h, ffn)):
            packed = {"blocks": (x, rows, width // 32, 16), "scales": (x, rows, width // 32)}
            out |= ({f"{experts}{name}_proj_{k}": s for k, s in packed.items()} if c.get("quantization_config") else
                    {f"{experts}{name}_proj": (x, width, rows)})
    return out if c.get("tie_word_embeddings") else out | {"lm_head.weight": (c["vocab_size"], h)}


@dataclass(frozen=True)
class GptOss(Case):
    """A case with sinks in +-10, gates and ups that reach their clamps, and codes and exponents where it is packed."""

    def stored_as(self, name: str) -> str:
        return "U8" if name.endswith(("_blocks", "_scales")) else super().stored_as(name)

    def tensors(self) -> Arrays:
        return {n: self._values(n, s) for n, s in {**self.shapes(self.config), **self.extra}.items()}

    def _values(self, name: str, shape: Shape) -> np.ndarray:
        rng = np.random.RandomState(zlib.crc32(name.encode()) ^ self.seed)
        if name.endswith("_blocks"):
            return rng.randint(0, 256, shape).astype(np.uint8)
        if name.endswith("_scales"):
            return rng.randint(124, 128, shape).astype(np.uint8) - np.uint8(1)
        loud = 10.0 if name.endswith("sinks") else 2.0 if name.endswith("gate_up_proj") else 1.0
        return rounded(values(name, shape, self.seed) * np.float32(loud), self.stored_as(name))


def rope(name: str, **changes: Any) -> Case:
    """The case with entries of its rope record replaced."""
    return PLAIN.set(name, rope_scaling={**YARN, **changes})


PLAIN = GptOss("f32", BASE, shapes)
SHORT = PLAIN.but(lengths=(40,))
PACKED = PLAIN.set("mxfp4", quantization_config=MXFP4)
CASES = (
    PLAIN,
    PACKED,
    PACKED.set("mxfp4-bf16", torch_dtype="bfloat16").but(dtype="BF16", shards=2, lengths=(40,)),
    SHORT.set("bf16-shards", torch_dtype="bfloat16").but(dtype="BF16", shards=2),
    PLAIN.set("bare-config", num_attention_heads=8, rms_norm_eps=..., rope_theta=..., rope_scaling=..., sliding_window=...,
              swiglu_limit=..., hidden_act=..., attention_bias=..., tie_word_embeddings=..., head_dim=...,
              num_key_value_heads=..., max_position_embeddings=..., num_experts_per_tok=..., torch_dtype=...).but(lengths=(150,)),
    SHORT.set("rope-null", rope_scaling=None, rope_theta=500.0),
    SHORT.set("rope-default", rope_scaling=..., rope_theta=..., rope_parameters={"rope_type": "default", "rope_theta": 1e4}),
    rope("whole-bounds", truncate=True).but(lengths=(40,)),
    SHORT.set("layer-types", layer_types=[FULL, SLIDES, SLIDES, FULL]),
    SHORT.set("no-attention-bias", attention_bias=False),
    SHORT.set("tied", tie_word_embeddings=True, num_experts_per_tok=1),
    SHORT.set("all-experts", num_experts_per_tok=4),
    SHORT.set("clamped", swiglu_limit=1.5, swiglu_alpha=0.8),
    SHORT.set("stated-twice", initial_context_length=32, experts_per_token=2, num_experts=4, router_aux_loss_coef=0.9,
              output_router_logits=False),
)
MUTATIONS: dict[str, tuple[Config, Any]] = {
    "head_dim": ({}, 32), "num_key_value_heads": ({}, 1), "rms_norm_eps": ({}, 0.3), "quantization_config": ({}, MXFP4),
    ORIGINAL: ({}, 64),
    "initial_context_length": ({}, 64), "experts_per_token": ({}, 3), "num_experts_per_tok": ({}, 1),
}


def unpacked(tensors: Arrays) -> Arrays:
    """The folder's tensors with its experts as the floats they mean, by arithmetic of its own."""
    fp4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
    out = {n: x for n, x in tensors.items() if not n.endswith(("_blocks", "_scales"))}
    for name in (n for n in tensors if n.endswith("_blocks")):
        codes, exponents = tensors[name], tensors[name.replace("_blocks", "_scales")].astype(int)
        pairs = np.stack([fp4[codes & 15], fp4[codes >> 4]], -1).reshape(*codes.shape[:-1], 32)
        values = np.ldexp(pairs, exponents[..., None] - 127).reshape(*codes.shape[:2], -1)
        out[name.removesuffix("_blocks")] = np.ascontiguousarray(values.swapaxes(1, 2))
    return out


# --- the same weights as llama.cpp's converter writes them

def _metadata(c: Config) -> dict[str, Any]:
    record = c["rope_scaling"]
    scaled = {"rope.scaling.type": "yarn", "rope.scaling.factor": record["factor"],
              "rope.scaling.original_context_length": record[ORIGINAL]} if "factor" in record else {}
    listed = {"attention.sliding_window_pattern": [t == SLIDES for t in c["layer_types"]]} if "layer_types" in c else {}
    return sizes(c) | scaled | listed | {
        "expert_count": c["num_local_experts"], "expert_used_count": c["num_experts_per_tok"],
        "expert_feed_forward_length": c["intermediate_size"], "attention.sliding_window": c["sliding_window"]}


def _split(case: Case) -> Arrays:
    """gate and up apart, every matrix [out, in]."""
    out: Arrays = {}
    for name, x in case.tensors().items():
        stem, bias = name.removesuffix("_bias"), name.endswith("_bias")
        word = "bias" if bias else "weight"
        if name.endswith("sinks"):
            out[f"{name}.weight"] = x
        elif ".experts." not in name:
            out[name] = x
        else:
            rows = x if bias else x.swapaxes(1, 2)
            parts = {"gate_proj": rows[:, 0::2], "up_proj": rows[:, 1::2]} if "gate_up" in name else {"down_proj": rows}
            out |= {f"{stem.rpartition('.')[0]}.{part}.{word}": np.ascontiguousarray(v) for part, v in parts.items()}
    return out


NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm", "self_attn.sinks": "attn_sinks",
         "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "mlp.router": "ffn_gate_inp", "mlp.experts.gate_proj": "ffn_gate_exps",
         "mlp.experts.up_proj": "ffn_up_exps", "mlp.experts.down_proj": "ffn_down_exps"}
OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
GGUF = Converted("gpt-oss", NAMES, _metadata, permuted=False, outside=OUTSIDE, changed=_split,
                 optional=("attn_q.bias", "attn_k.bias", "attn_v.bias"))
WHOLE = rope("yarn", truncate=True)  # llama.cpp's bounds are whole
GGUF_CASES = (WHOLE, WHOLE.set("plain-rope", rope_scaling={"rope_type": "default"}),
              WHOLE.set("one-key-head", num_key_value_heads=1, num_experts_per_tok=3),
              WHOLE.set("layer-types", layer_types=[FULL, SLIDES, SLIDES, FULL]))
