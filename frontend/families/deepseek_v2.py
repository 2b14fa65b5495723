"""DeepSeek V2, V2-Lite and V2.5: latent attention, and experts chosen by softmax scores (DeepSeek-AI 2024)."""
from __future__ import annotations

from typing import Any

from uaii.frontend import blocks
from uaii.frontend.build import Build
from uaii.frontend.common import DROPPED, DecoderConfig
from uaii.frontend.config import COUNT, FLAG, LENGTH, POSITIVE, WORD, key
from uaii.frontend.families.deepseek_v3 import LATENT_EPS, TENSORS
from uaii.frontend.family import Family
from uaii.frontend.latent import latent_attention, latent_rope_keys
from uaii.frontend.mixture import ROUTER_TRAINING, mixture, shared_mlp
from uaii.ir.ops import Add


class DeepseekV2Config(DecoderConfig):
    """Source: transformers configuration_deepseek_v2.py; norm_topk_prob, scoring_func and moe_layer_freq it does not read."""

    head_dim: Any = None
    rotary_dim: Any = None
    value_dim: Any = None
    q_rank: int = key("q_lora_rank", default=1536, null=0)
    kv_rank: int = key("kv_lora_rank", default=512)
    nope: int = key("qk_nope_head_dim", default=128)
    turned: int = key("qk_rope_head_dim", default=64)
    value_width: int = key("v_head_dim", default=128)
    whole: int = key("qk_head_dim", default=lambda c: c.nope + c.turned)
    max_positions: int = key("max_position_embeddings", kind=LENGTH, default=2048)
    eps: float = key("rms_norm_eps", kind=POSITIVE, default=1e-6)
    act: str = blocks.activation("hidden_act", gguf="silu", default="silu")
    rope, score_factor = latent_rope_keys()
    attention_bias: bool = key("attention_bias", kind=FLAG, default=False)
    mlp_bias: bool = key("mlp_bias", kind=FLAG, default=False, one_of=(False,))
    experts: int = key(("n_routed_experts", "num_experts"), default=64)
    experts_used: int = key("num_experts_per_tok")
    expert_width: int = key("moe_intermediate_size", default=1407)
    shared_experts: int = key("n_shared_experts", default=2)
    dense_layers: int = key("first_k_dense_replace", kind=COUNT, default=0)
    choice: str = key("topk_method", kind=WORD, default="greedy", one_of=("greedy", "group_limited_greedy"))
    groups: int = key("n_group", default=1, null=1)
    groups_used: int = key("topk_group", default=1, null=1)
    weight_scale: float = key("routed_scaling_factor", kind=POSITIVE, default=1.0)
    renormalise: bool = key("norm_topk_prob", kind=FLAG, default=False, one_of=(False,))
    scores: str = key("scoring_func", kind=WORD, default="softmax", one_of=("softmax",))
    every: int = key("moe_layer_freq", default=1, one_of=(1,))
    inert = {**ROUTER_TRAINING, "ep_size": "how many machines held the experts",
             "head_dim": "transformers puts qk_rope_head_dim here, whatever it says"}

    def check(self) -> None:
        self.need(self.act == "silu", "hidden_act", "the experts compute with silu")
        self.need(self.whole == self.nope + self.turned, "qk_head_dim", "is not qk_nope_head_dim + qk_rope_head_dim")
        self.need(self.kv_heads == self.heads, "num_key_value_heads", "latent attention has one key head for each query head")
        self.need(self.groups_used <= self.groups, "topk_group", f"there are {self.groups} groups")
        self.need(self.experts_used <= self.experts, "num_experts_per_tok", f"there are {self.experts} experts")


def model(c: DeepseekV2Config, b: Build) -> None:
    dense, wide, shared = c.ffn, c.expert_width, c.expert_width * c.shared_experts
    routing: dict[str, Any] = {"top_k": c.experts_used, "renormalise": False, "scale": c.weight_scale}
    if c.choice == "group_limited_greedy":
        routing |= {"groups": c.groups, "groups_used": c.groups_used, "group_score": "max"}
    ids, keep, step = blocks.inputs(b)
    x = blocks.embed(b, c, ids)
    for i in blocks.layers(c):
        with b.scope(f"layers.{i}"):
            h = b.rms_norm(x, "attn_norm", c.eps, i)
            a = latent_attention(b, c, h, i, step, c.rope, eps=LATENT_EPS, bias=c.attention_bias,
                                 scale=c.score_factor * (c.nope + c.turned) ** -0.5)
            x = Add(x, b.linear(a, "attn.o", c.width, i, c.attention_bias)).out
            h = b.rms_norm(x, "ffn_norm", c.eps, i)
            if i < c.dense_layers:
                x = Add(x, blocks.gated_mlp(b, h, i, dense, c.act, False)).out
                continue
            y = mixture(b, c, h, i, wide, **routing)
            x = Add(x, Add(y, shared_mlp(b, h, i, shared, c.act)).out).out
    x = b.rms_norm(x, "norm", c.eps)
    blocks.result(b, blocks.head(b, c, blocks.last(b, x, keep)))


DEEPSEEK_V2 = Family(
    name="deepseek_v2", hf=(("deepseek_v2", "DeepseekV2ForCausalLM"),), gguf=(), config=DeepseekV2Config, model=model,
    brands=("DeepSeek-V2", "DeepSeek-V2-Lite", "DeepSeek-V2.5", "DeepSeek-Coder-V2"), dropped=DROPPED, tensors=TENSORS,
)
FAMILIES = (DEEPSEEK_V2,)
