"""Tiny Mistral checkpoints: the window in its three spellings, Nemo's wide heads, and defaults of its own."""
from __future__ import annotations

from family_cases.llama import BASE as LLAMA
from family_cases.llama import shapes as llama_shapes
from tiny_models import Case, Config, Shape

BASE: Config = {k: v for k, v in LLAMA.items() if k not in ("attention_bias", "mlp_bias")} | {
    "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 8}


def shapes(c: Config) -> dict[str, Shape]:
    """Llama's; eight key heads when the config is silent."""
    return llama_shapes({"num_key_value_heads": 8, **c})


WINDOW = Case("window", BASE, shapes, lengths=(9, 60))
SHORT = WINDOW.but(lengths=(40,))
CASES = (
    WINDOW,
    SHORT.set("window-null", sliding_window=None),
    SHORT.set("wide-heads", head_dim=32, rope_theta=1e6),
    SHORT.set("bf16-tied", tie_word_embeddings=True, torch_dtype="bfloat16").but(dtype="BF16"),
    SHORT.set("defaults", num_attention_heads=8, num_key_value_heads=..., head_dim=None, sliding_window=..., rms_norm_eps=...,
              rope_theta=..., hidden_act=..., tie_word_embeddings=..., max_position_embeddings=...),
)
