"""Tiny SmolLM 3 checkpoints: which layers have no rope, in each spelling, windows on those, biases, the tied default."""
from __future__ import annotations

from family_cases.llama import BASE as LLAMA
from family_cases.llama import shapes as llama_shapes
from gguf_twin import LLAMA_NAMES, Twin, sizes
from tiny_models import Case, Config, Shape

BASE: Config = LLAMA | {"architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "num_hidden_layers": 5,
                        "rope_theta": 5e6, "use_sliding_window": False, "sliding_window": 8, "max_window_layers": 28,
                        "pad_token_id": 0}
SOME = [1, 0, 1, 0, 0]
LISTED = ["sliding_attention", "full_attention", "full_attention", "sliding_attention", "full_attention"]


def shapes(c: Config) -> dict[str, Shape]:
    """Llama's; four key heads and a tied head when the config is silent."""
    return llama_shapes({"tie_word_embeddings": True, "num_key_value_heads": 4, **c})


PLAIN = Case("every-fourth", BASE, shapes, lengths=(40,))
WINDOW = PLAIN.set("window", use_sliding_window=True, no_rope_layer_interval=2).but(lengths=(9, 60))
CASES = (
    PLAIN, WINDOW,
    PLAIN.set("layers-listed", no_rope_layers=SOME, use_sliding_window=True),
    PLAIN.set("window-listed", use_sliding_window=True, layer_types=LISTED),
    PLAIN.set("biases", attention_bias=True, mlp_bias=True, no_rope_layer_interval=3),
    PLAIN.set("bf16", torch_dtype="bfloat16").but(dtype="BF16"),
    PLAIN.set("defaults", tie_word_embeddings=..., rope_theta=..., num_key_value_heads=..., no_rope_layers=None,
              sliding_window=None, use_sliding_window=..., max_window_layers=..., rms_norm_eps=...),
)
MUTATIONS = {"no_rope_layers": ({}, SOME), "no_rope_layer_interval": ({}, 3)}
GGUF = Twin("smollm3", LLAMA_NAMES, sizes, permuted=True)
GGUF_CASES = (PLAIN, PLAIN.set("tied", tie_word_embeddings=True))
