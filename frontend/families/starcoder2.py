"""StarCoder2: llama's order of a layer with LayerNorm, a plain MLP, biases and a sliding window (Lozhkov et al. 2024)."""
from __future__ import annotations

from typing import Any

from uaii.frontend import blocks
from uaii.frontend.build import Build
from uaii.frontend.common import DROPPED, DecoderConfig, outer, pair, projections
from uaii.frontend.config import FLAG, POSITIVE, REQUIRED, WORD, key, scalar_of
from uaii.frontend.family import Family
from uaii.frontend.rope import rope_keys
from uaii.frontend.tensors import where
from uaii.frontend.window import window_keys
from uaii.ir.ops import Add


class Starcoder2Config(DecoderConfig):
    """Source: transformers configuration_starcoder2.py; llama.cpp src/models/starcoder2.cpp, which has no window."""

    kv_heads: int = key("num_key_value_heads", "attention.head_count_kv", default=2, gguf_default=scalar_of("heads"))
    max_positions: int = key("max_position_embeddings", "context_length", default=4096, gguf_default=REQUIRED)
    tied: bool = key("tie_word_embeddings", kind=FLAG, default=True)
    eps: float = key("norm_epsilon", "attention.layer_norm_epsilon", POSITIVE, default=1e-5, gguf_default=REQUIRED)
    act: str = blocks.activation("hidden_act", gguf="gelu_tanh", default="gelu_pytorch_tanh")
    rope: Any = rope_keys(10000.0)
    bias: bool = key("use_bias", kind=FLAG, default=True)
    qkv_bias: bool | None = key("use_bias", kind=FLAG, default=True, gguf_default=None)  # a GGUF's tensors say
    windows: Any = window_keys(lambda c, i: True, layer_types=False)
    norm_type: str = key("norm_type", kind=WORD, default="layer_norm", one_of=("layer_norm",))
    mlp_type: str = key("mlp_type", kind=WORD, default="default", one_of=("default",))
    inert = {"residual_dropout": "training", "embedding_dropout": "training",
             "activation_function": "the first release's; hidden_act is what transformers reads",
             "layer_norm_epsilon": "the first release's; norm_epsilon is what transformers reads",
             "attention_softmax_in_fp32": "the softmax is in f32", "scale_attention_softmax_in_fp32": "the softmax is in f32",
             "scale_attn_weights": "transformers always scales"}


def model(c: Starcoder2Config, b: Build) -> None:
    ids, keep, step = blocks.inputs(b)
    x = blocks.embed(b, c, ids)
    for i in blocks.layers(c):
        with b.scope(f"layers.{i}"):
            h = b.layer_norm(x, "attn_norm", c.eps, i)
            q, k, v = blocks.rotated_heads(b, c, h, i, step, c.rope, c.qkv_bias)
            a = blocks.attend(b, i, step, q, k, v, scale=c.head_dim ** -0.5, window=c.windows[i])
            x = Add(x, b.linear(a, "attn.o", c.width, i, c.bias)).out
            h = b.layer_norm(x, "ffn_norm", c.eps, i)
            x = Add(x, blocks.mlp(b, h, i, c.ffn, c.act, c.bias)).out
    x = b.layer_norm(x, "norm", c.eps)
    blocks.result(b, blocks.head(b, c, blocks.last(b, x, keep)))


STARCODER2 = Family(
    name="starcoder2", hf=(("starcoder2", "Starcoder2ForCausalLM"),), gguf=("starcoder2",), config=Starcoder2Config,
    model=model, brands=("StarCoder2 3B", "StarCoder2 7B", "StarCoder2 15B"), dropped=DROPPED,
    tensors={
        "embed": where("model.embed_tokens.weight", "token_embd.weight"), **pair("attn_norm", "input_layernorm", "attn_norm"),
        **projections(permuted=False), **pair("attn.o", "self_attn.o_proj", "attn_output"),
        **pair("ffn_norm", "post_attention_layernorm", "ffn_norm"), **pair("ffn.up", "mlp.c_fc", "ffn_up"),
        **pair("ffn.down", "mlp.c_proj", "ffn_down"), **outer("norm", "model.norm", "output_norm"),
        "head": where("lm_head.weight", "output.weight"),
    },
)
FAMILIES = (STARCODER2,)
