"""llama.cpp's deepseek2: DeepSeek V2, V3, R1 and Kimi K2 in one architecture, whose file says how experts are scored."""
from __future__ import annotations

from typing import Any

from uaii.frontend import blocks
from uaii.frontend.build import Build
from uaii.frontend.common import DecoderConfig, equal_split
from uaii.frontend.config import COUNT, FLAG, LENGTH, NUMBER, POSITIVE, Config, Entry, key, scalar_of
from uaii.frontend.families.deepseek_v3 import TENSORS
from uaii.frontend.family import Family
from uaii.frontend.latent import latent_attention, latent_rope_keys
from uaii.frontend.mixture import mixture, shared_mlp
from uaii.frontend.temperature import Temperature
from uaii.frontend.tensors import At, EachRows, where
from uaii.ir.known import known, plain
from uaii.ir.ops import Add

GATING = {1: "softmax", 2: "sigmoid"}
LEAST_SUM = 6.103515625e-5  # below which a sum of weights does not divide (llama-graph.cpp, build_moe_ffn)


def _trunk(c: Config) -> tuple[int, int]:
    """Layers without those for further tokens, and entries of the vocabulary: by these llama.cpp tells models apart."""
    said = c.raw("vocab_size")
    depth = int(plain(c.__dict__["layers"]) - plain(c.__dict__["predicting"]))
    return depth, said if isinstance(said, int) else len(c.raw("tokenizer.ggml.tokens") or ())


class QueryRank(Entry):
    """The queries' rank, which llama.cpp does not read of the models that it takes for lite ones: 0 there, and when absent."""

    KEY = "attention.q_lora_rank"

    def keys(self, fmt: str) -> tuple[str, ...]:
        return (self.KEY,) if fmt == "gguf" else ()

    def read(self, c: Config) -> Any:
        depth, tokens = _trunk(c)
        lite = depth in (26, 27) or (depth, tokens) == (48, 128256)
        return known(COUNT.check(c.raw(self.KEY), self.KEY, c) if c.has(self.KEY) and not lite else 0, c.at(self.KEY))


class Gating(Entry):
    """How logits become scores; a silent file means softmax, but for GLM 4.7 Flash, known by depth and vocabulary."""

    KEY = "expert_gating_func"

    def keys(self, fmt: str) -> tuple[str, ...]:
        return (self.KEY,) if fmt == "gguf" else ()

    def read(self, c: Config) -> Any:
        said = COUNT.check(c.raw(self.KEY), self.KEY, c) if c.has(self.KEY) else 0
        c.need(said in (0, *GATING), self.KEY, "1 is softmax, 2 is sigmoid")
        silent = 2 if _trunk(c) in ((47, 154880), (48, 154880)) else 1
        return known(GATING[said or silent], c.at(self.KEY))


class Deepseek2Config(DecoderConfig):
    """Source: llama.cpp src/models/deepseek2.cpp. Lengths ending in mla are of heads; without them the plain ones are."""

    predicting: int = key((), "nextn_predict_layers", COUNT, default=0)
    kv_heads: int = key((), "attention.head_count_kv", default=scalar_of("heads"))
    head_dim: Any = None
    rotary_dim: Any = None
    value_dim: Any = None
    key_length: int = key((), "attention.key_length", default=equal_split)
    value_length: int = key((), "attention.value_length", default=equal_split)
    key_whole: int = key((), "attention.key_length_mla", COUNT, default=0)
    value_whole: int = key((), "attention.value_length_mla", COUNT, default=0)
    turned: int = key((), "rope.dimension_count", default=scalar_of("key_length"))
    whole: int = key((), default=lambda c: c.key_whole or c.key_length)
    nope: int = key((), default=lambda c: c.whole - c.turned)
    value_width: int = key((), default=lambda c: c.value_whole or c.value_length)
    q_rank: Any = QueryRank()
    kv_rank: int = key((), "attention.kv_lora_rank")
    max_positions: int = key((), "context_length", LENGTH)
    eps: float = key((), "attention.layer_norm_rms_epsilon", POSITIVE)
    rope, score_factor = latent_rope_keys()
    beta: float = key((), "attention.temperature_scale", NUMBER, default=0.0)
    length: int = key((), "attention.temperature_length", COUNT, default=0)
    experts: int = key((), "expert_count")
    experts_used: int = key((), "expert_used_count")
    expert_width: int = key((), "expert_feed_forward_length")
    shared_experts: int = key((), "expert_shared_count")
    dense_layers: int = key((), "leading_dense_block_count", COUNT, default=0)
    groups: int = key((), "expert_group_count", COUNT, default=0)
    groups_used: int = key((), "expert_group_used_count", COUNT, default=0)
    renormalise: bool = key((), "expert_weights_norm", FLAG, default=False)
    weight_scale: float = key((), "expert_weights_scale", NUMBER, default=0.0)
    scores: Any = Gating()

    def check(self) -> None:
        latent, groups, used, length = bool(self.key_whole), self.groups, self.groups_used, self.length
        lengths = self.key_length, self.value_length
        self.need(latent == bool(self.value_whole), "attention.value_length_mla", "goes together with attention.key_length_mla")
        self.need(not latent or lengths == (self.kv_rank + self.turned, self.kv_rank), "attention.key_length",
                  "with attention.key_length_mla it is the width of a latent row, and attention.value_length that of a latent")
        self.need(self.kv_heads == (1 if latent else self.heads), "attention.head_count_kv",
                  "is 1 with attention.key_length_mla, without it the number of heads")
        self.need(self.nope > 0, "rope.dimension_count", "leaves no plain features")
        self.need(self.predicting < self.layers, "nextn_predict_layers", "leaves no layers")
        self.need(self.experts_used <= self.experts, "expert_used_count", f"there are {self.experts} experts")
        self.need(groups < 2 or 0 < used < groups, "expert_group_used_count", f"there are {groups} groups")
        self.need(not self.beta or length > 0, "attention.temperature_length", "positions are divided by it")


def model(c: Deepseek2Config, b: Build) -> None:
    dense, wide, shared = c.ffn, c.expert_width, c.expert_width * c.shared_experts
    routing: dict[str, Any] = {
        "top_k": c.experts_used, "scores": c.scores, "renormalise": c.renormalise, "scale": c.weight_scale or 1.0,
        "floor": LEAST_SUM if c.renormalise else 0.0}
    if c.groups > 1:
        routing |= {"groups": c.groups, "groups_used": c.groups_used, "group_score": "top2"}
    ids, keep, step = blocks.inputs(b)
    factors = blocks.temperature(b, step, Temperature(c.beta, c.length))
    x = blocks.embed(b, c, ids)
    depth = plain(c.layers) - plain(c.predicting)
    for i in range(depth):
        with b.scope(f"layers.{i}"):
            h = b.rms_norm(x, "attn_norm", c.eps, i)
            a = latent_attention(b, c, h, i, step, c.rope, eps=c.eps, bias=False, factors=factors,
                                 scale=c.score_factor * c.whole ** -0.5)
            x = Add(x, b.linear(a, "attn.o", c.width, i, False)).out
            h = b.rms_norm(x, "ffn_norm", c.eps, i)
            if i < c.dense_layers:
                x = Add(x, blocks.gated_mlp(b, h, i, dense, "silu", False)).out
                continue
            y = mixture(b, c, h, i, wide, correction=b.stores("moe.correction", i=i), **routing)
            x = Add(x, Add(y, shared_mlp(b, h, i, shared, "silu")).out).out
    x = b.rms_norm(x, "norm", c.eps)
    blocks.result(b, blocks.head(b, c, blocks.last(b, x, keep)))
    b.drop_layers(depth, plain(c.predicting), "predicts further tokens at once (MTP)")


def expert_rows(c: Any) -> tuple[int, int]:
    """Rows of gate and up where they are stacked in one tensor of experts."""
    return c.expert_width, c.expert_width


FUSED = {f"moe.{n}": where((), (At(f"blk.{{i}}.ffn_{n}_exps.weight"),
                                At("blk.{i}.ffn_gate_up_exps.weight", (EachRows(index, expert_rows),))))
         for index, n in enumerate(("gate", "up"))}
DEEPSEEK2 = Family(
    name="deepseek2", hf=(), gguf=("deepseek2",), config=Deepseek2Config, model=model,
    brands=("DeepSeek-V2", "DeepSeek-V3", "DeepSeek-R1", "Kimi K2"),
    tensors={**TENSORS, **FUSED, "moe.correction": where((), "blk.{i}.exp_probs_b.bias")},
)
FAMILIES = (DEEPSEEK2,)
