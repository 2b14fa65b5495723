"""Tiny Qwen 3 checkpoints: norms of q and k per head, heads wider than hidden/heads, biases, windows."""
from __future__ import annotations

from family_cases.llama import shapes as llama_shapes
from family_cases.qwen2 import BASE as QWEN2
from family_cases.qwen2 import LISTED
from gguf_twin import LLAMA_NAMES, Twin, sizes
from tiny_models import Case, Config, Shape

BASE: Config = QWEN2 | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32, "attention_bias": False}


def shapes(c: Config) -> dict[str, Shape]:
    """Llama's, and two norms over a head; a head is 128 wide unless the config says so."""
    d = c.get("head_dim", 128)
    out = llama_shapes({**c, "head_dim": d})
    return out | {f"model.layers.{i}.self_attn.{x}_norm.weight": (d,) for i in range(c["num_hidden_layers"]) for x in "qk"}


PLAIN = Case("wide-heads", BASE, shapes, lengths=(40,))
WINDOW = PLAIN.set("window", use_sliding_window=True).but(lengths=(9, 60))
CASES = (
    PLAIN, WINDOW,
    PLAIN.set("narrow-heads", head_dim=16, rms_norm_eps=0.3),
    PLAIN.set("head-dim-absent", head_dim=..., max_window_layers=..., sliding_window=..., use_sliding_window=...,
              rms_norm_eps=...),
    PLAIN.set("attention-bias", attention_bias=True),
    PLAIN.set("window-listed", use_sliding_window=True, layer_types=LISTED),
    PLAIN.set("bf16-tied", tie_word_embeddings=True, torch_dtype="bfloat16", rope_theta=1e6).but(dtype="BF16"),
)
GGUF = Twin("qwen3", LLAMA_NAMES | {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}, sizes, permuted=False)
GGUF_CASES = (PLAIN, PLAIN.set("narrow", head_dim=16), PLAIN.set("tied", tie_word_embeddings=True))
