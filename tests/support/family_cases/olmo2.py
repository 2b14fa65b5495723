"""Tiny OLMo 2 checkpoints: norms after the sublayers and over the whole of q and k."""
from __future__ import annotations

from family_cases.llama import BASE as LLAMA
from family_cases.llama import ORIGINAL
from family_cases.llama import shapes as llama_shapes
from gguf_twin import LLAMA_NAMES, Twin, sizes
from tiny_models import Case, Config, Shape

BASE: Config = {k: v for k, v in LLAMA.items() if k != "mlp_bias"} | {
    "architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "rms_norm_eps": 1e-6}


def shapes(c: Config) -> dict[str, Shape]:
    """Llama's with the norms elsewhere."""
    out = {n.replace("input_layernorm", "post_feedforward_layernorm"): s for n, s in llama_shapes(c).items()}
    return out | {n.replace("_proj", "_norm"): s[:1] for n, s in out.items() if n.endswith(("q_proj.weight", "k_proj.weight"))}


PLAIN = Case("f32", BASE, shapes, lengths=(12, 60))
SHORT = PLAIN.but(lengths=(40,))
CASES = (
    PLAIN,
    SHORT.set("attention-bias", attention_bias=True),
    SHORT.set("bf16-tied", tie_word_embeddings=True, torch_dtype="bfloat16").but(dtype="BF16"),
    SHORT.set("defaults", num_key_value_heads=..., rope_theta=..., attention_bias=..., rms_norm_eps=..., tie_word_embeddings=...),
    SHORT.set("yarn", rope_scaling={"rope_type": "yarn", "factor": 4.0, ORIGINAL: 32}),
)
MUTATIONS = {"sliding_window": ({}, 8), ORIGINAL: ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, ORIGINAL: 32}}, 64)}
NAMES = {**LLAMA_NAMES, "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
         "post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}
GGUF = Twin("olmo2", NAMES, sizes, permuted=False)
GGUF_CASES = (PLAIN, PLAIN.set("all-heads-kv", num_key_value_heads=4))
