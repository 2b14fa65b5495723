"""DeepSeek V3 and R1: latent attention, and experts chosen in groups by corrected sigmoid scores (DeepSeek-AI 2024)."""
from __future__ import annotations

from typing import Any

from uaii.frontend import blocks
from uaii.frontend.build import Build
from uaii.frontend.common import DROPPED, DecoderConfig, llama_names
from uaii.frontend.config import COUNT, FLAG, LENGTH, POSITIVE, WORD, key, scalar_of
from uaii.frontend.family import Family
from uaii.frontend.latent import latent_attention, latent_names, latent_rope_keys
from uaii.frontend.mixture import ROUTER_TRAINING, expert_names, mixture, shared_mlp, shared_names
from uaii.frontend.tensors import where
from uaii.ir.known import plain
from uaii.ir.ops import Add

LATENT_EPS = 1e-6  # of the norms inside latent attention, whatever rms_norm_eps says (modeling_deepseek_v3.py)


class DeepseekV3Config(DecoderConfig):
    """Source: transformers configuration_deepseek_v3.py; scoring_func, topk_method and moe_layer_freq it does not read."""

    kv_heads: int = key("num_key_value_heads", default=128, null=scalar_of("heads"))
    head_dim: Any = None
    rotary_dim: Any = None
    value_dim: Any = None
    q_rank: int = key("q_lora_rank", default=1536, null=0)
    kv_rank: int = key("kv_lora_rank", default=512)
    nope: int = key("qk_nope_head_dim", default=128)
    turned: int = key("qk_rope_head_dim", default=64)
    rotates: int = key("head_dim", default=scalar_of("turned"))  # transformers 5 writes it
    value_width: int = key("v_head_dim", default=128)
    whole: int = key("qk_head_dim", default=lambda c: c.nope + c.turned)
    max_positions: int = key("max_position_embeddings", kind=LENGTH, default=4096)
    eps: float = key("rms_norm_eps", kind=POSITIVE, default=1e-6)
    act: str = blocks.activation("hidden_act", gguf="silu", default="silu")
    rope, score_factor = latent_rope_keys()
    interleaved: bool = key("rope_interleave", kind=FLAG, default=True)
    attention_bias: bool = key("attention_bias", kind=FLAG, default=False)
    experts: int = key(("n_routed_experts", "num_local_experts"), default=256)
    experts_used: int = key("num_experts_per_tok", default=8)
    expert_width: int = key("moe_intermediate_size", default=2048)
    shared_experts: int = key("n_shared_experts", default=1)
    dense_layers: int = key("first_k_dense_replace", kind=COUNT, default=3)
    groups: int = key("n_group", default=8)
    groups_used: int = key("topk_group", default=4)
    renormalise: bool = key("norm_topk_prob", kind=FLAG, default=True)
    weight_scale: float = key("routed_scaling_factor", kind=POSITIVE, default=2.5)
    scores: str = key("scoring_func", kind=WORD, default="sigmoid", one_of=("sigmoid",))
    choice: str = key("topk_method", kind=WORD, default="noaux_tc", one_of=("noaux_tc",))
    every: int = key("moe_layer_freq", default=1, one_of=(1,))
    predicting: int = key(("num_nextn_predict_layers", "num_mtp_layers"), kind=COUNT, default=1)
    inert = {**ROUTER_TRAINING, "ep_size": "how many machines held the experts"}

    def check(self) -> None:
        self.need(self.act == "silu", "hidden_act", "the experts compute with silu")
        self.need(self.rotates == self.turned, "head_dim", "rotation takes qk_rope_head_dim")
        self.need(self.whole == self.nope + self.turned, "qk_head_dim", "is not qk_nope_head_dim + qk_rope_head_dim")
        self.need(self.kv_heads == self.heads, "num_key_value_heads", "latent attention has one key head for each query head")
        self.need(self.groups_used <= self.groups, "topk_group", f"there are {self.groups} groups")
        self.need(self.experts_used <= self.experts, "num_experts_per_tok", f"there are {self.experts} experts")


def model(c: DeepseekV3Config, b: Build) -> None:
    dense, wide, shared = c.ffn, c.expert_width, c.expert_width * c.shared_experts
    routing: dict[str, Any] = {
        "top_k": c.experts_used, "scores": "sigmoid", "renormalise": c.renormalise, "scale": c.weight_scale, "floor": 1e-20,
        "groups": c.groups, "groups_used": c.groups_used, "group_score": "top2"}
    ids, keep, step = blocks.inputs(b)
    x = blocks.embed(b, c, ids)
    for i in blocks.layers(c):
        with b.scope(f"layers.{i}"):
            h = b.rms_norm(x, "attn_norm", c.eps, i)
            a = latent_attention(b, c, h, i, step, c.rope, eps=LATENT_EPS, interleaved=c.interleaved, bias=c.attention_bias,
                                 scale=c.score_factor * (c.nope + c.turned) ** -0.5)
            x = Add(x, b.linear(a, "attn.o", c.width, i, c.attention_bias)).out
            h = b.rms_norm(x, "ffn_norm", c.eps, i)
            if i < c.dense_layers:
                x = Add(x, blocks.gated_mlp(b, h, i, dense, c.act, False)).out
                continue
            y = mixture(b, c, h, i, wide, correction=True, **routing)
            x = Add(x, Add(y, shared_mlp(b, h, i, shared, c.act)).out).out
    x = b.rms_norm(x, "norm", c.eps)
    blocks.result(b, blocks.head(b, c, blocks.last(b, x, keep)))
    b.drop_layers(plain(c.layers), plain(c.predicting), "predicts further tokens at once (MTP)")


TENSORS = {**{k: w for k, w in llama_names(permuted=False).items() if not k.startswith(("attn.q", "attn.k", "attn.v"))},
           **latent_names(), **expert_names(), **shared_names()}
DEEPSEEK_V3 = Family(
    name="deepseek_v3", hf=(("deepseek_v3", "DeepseekV3ForCausalLM"),), gguf=(), config=DeepseekV3Config, model=model,
    brands=("DeepSeek-V3", "DeepSeek-V3.1", "DeepSeek-R1", "Moonlight"), dropped=DROPPED,
    tensors={**TENSORS,
             "moe.correction": where("model.layers.{i}.mlp.gate.e_score_correction_bias", "blk.{i}.exp_probs_b.bias")},
)
FAMILIES = (DEEPSEEK_V3,)
