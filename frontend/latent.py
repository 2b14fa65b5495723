"""Multi-head latent attention, as families share it: the keys of its sizes, the names of its tensors, the block."""
from __future__ import annotations

import math
from typing import Any

from uaii.frontend.blocks import Step, tempered
from uaii.frontend.build import Build
from uaii.frontend.common import LAYER
from uaii.frontend.config import NUMBER, Config, Entry
from uaii.frontend.rope import Rope, RopeKeys
from uaii.frontend.tensors import At, HeadRows, Rows, Stacked, Transposed, Where, where
from uaii.ir import ops
from uaii.ir.core import Input, Value
from uaii.ir.known import known, plain
from uaii.ir.ops import RopeScaling
from uaii.ir.types import Tensor

LOG = "rope.scaling.yarn_log_multiplier"


def attend_latent(b: Build, i: int, step: Step, q_plain: Value, q_turned: Value, latent: Value, k_turned: Value, *,
                  value_dim: int, scale: float) -> Value:
    """Latent attention of layer `i`; declares the cache's inputs and outputs [B,1,P or T,c+r], the same rows as key and value."""
    _, _, heads, n = q_plain.type.shape
    c, r = int(latent.type.shape[-1]), int(k_turned.type.shape[-1])
    past = [Input(Tensor("f32", ("B", 1, "P", c + r)), f"past_key_values.{i}.{n_}") for n_ in ("key", "value")]
    b.graph.inputs += past
    k_up, v_up = b.weight("attn.k_up", int(heads), int(n), c, i=i), b.weight("attn.v_up", int(heads), value_dim, c, i=i)
    with b.scope("attend"):
        op = ops.LatentAttention(q_plain, q_turned, latent, k_turned, k_up, v_up, past[0], past[1], step.mask, scale=scale)
    out, key_, value = op.results
    key_.name, value.name = f"present.{i}.key", f"present.{i}.value"
    b.graph.outputs += [key_, value]
    b.graph.output_names += [f"present.{i}.key", f"present.{i}.value"]
    return out


def latent_attention(b: Build, c: Any, h: Value, i: int, step: Step, rope: Rope, *, eps: float, scale: float,
                     interleaved: bool = True, bias: Any = None, factors: Value | None = None) -> Value:
    """What heads read of the past through one latent row for each token [B,S,H*v].

    Each query has `nope` plain features and `turned` rotated ones; the new row is a normed latent and one rotated key for all
    heads. `q_rank` 0 means queries without a low-rank middle. `factors` are those of the queries' positions, see blocks.tempered.
    """
    source = b.rms_norm(b.linear(h, "attn.q_a", c.q_rank, i, bias), "attn.q_a_norm", eps, i) if plain(c.q_rank) else h
    stem = "attn.q_b" if plain(c.q_rank) else "attn.q"
    q = ops.SplitHeads(b.linear(source, f"{stem}.plain", c.heads * c.nope, i), n=c.heads).out
    turned = ops.SplitHeads(b.linear(source, f"{stem}.turned", c.heads * c.turned, i), n=c.heads).out
    latent = b.rms_norm(b.linear(h, "attn.kv_a.latent", c.kv_rank, i, bias), "attn.kv_a_norm", eps, i)
    key_ = ops.SplitHeads(b.linear(h, "attn.kv_a.turned", c.turned, i, bias), n=1).out
    turned, key_ = (b.rope(x, rope, step.positions, c.turned, interleaved) for x in (turned, key_))
    q, turned = tempered(b, q, factors), tempered(b, turned, factors)
    return attend_latent(b, i, step, q, turned, latent, key_, value_dim=int(plain(c.value_width)), scale=scale)


class LatentRopeKeys(RopeKeys):
    """RopeKeys of DeepSeek: in a GGUF a stated log multiplier leaves cos and sin as they are (llama.cpp llama-context.cpp)."""

    GGUF = (*RopeKeys.GGUF, LOG)

    def _gguf_yarn(self, c: Config, original: int, factor: float) -> RopeScaling:
        usual = super()._gguf_yarn(c, original, factor)
        return RopeScaling("yarn", (*usual.params, ("attention_factor", 1.0))) if _log(c) else usual


class ScoreFactor(Entry):
    """What YaRN multiplies the scale of scores by, besides the magnitude of cos and sin; it follows `rope`.

    In a folder the square of 1 + 0.1 m ln s where the rope record states `mscale_all_dim` m (transformers
    modeling_deepseek_v3.py, yarn_apply_mscale). In a GGUF m is ten times the log multiplier, and what llama.cpp cancels of its
    own magnitude counts too, for linear scaling as well (llama.cpp src/models/deepseek2.cpp).
    """

    def keys(self, fmt: str) -> tuple[str, ...]:
        return (LOG,) if fmt == "gguf" else ()

    def read(self, c: Config) -> Any:
        rope: Rope = c.__dict__["rope"]
        params: dict[str, Any] = dict(rope.scaling.params) if rope.scaling else {}
        s = params.get("factor", 1.0)
        if c.fmt == "hf":
            m = params.get("mscale_all_dim")
            return known((0.1 * m * math.log(s) + 1.0) ** 2 if m and s > 1 else 1.0, rope.loc)
        m = _log(c) / 0.1
        yarn = rope.scaling is not None and rope.scaling.kind == "yarn"
        own = 1.0 if yarn and (m or s <= 1) else 0.1 * math.log(s) + 1.0
        return known((own * plain(rope.magnitude) * (0.1 * m * math.log(s) + 1.0)) ** 2, c.at(LOG))


def _log(c: Config) -> float:
    return float(plain(NUMBER.check(c.raw(LOG), LOG, c))) if c.has(LOG) else 0.0


def latent_rope_keys() -> tuple[Any, Any]:
    """Declares (rope, score_factor); they must follow `max_positions`."""
    return LatentRopeKeys(10000.0), ScoreFactor()


def query_rows(c: Any) -> tuple[int, int]:
    """Rows of each head's query: plain, rotated."""
    return c.nope, c.turned


def value_rows(c: Any) -> tuple[int, int]:
    """Rows of each head in kv_b: key, value."""
    return c.nope, c.value_width


def latent_rows(c: Any) -> tuple[int, int]:
    """Rows of kv_a: latent, rotated key."""
    return c.kv_rank, c.turned


def latent_names(hf: str = LAYER + "self_attn.") -> dict[str, Where]:
    """The tensors of latent attention."""
    out: dict[str, Where] = {
        "attn.q_a": where(f"{hf}q_a_proj.weight", "blk.{i}.attn_q_a.weight"), "attn.q_a.bias": where(f"{hf}q_a_proj.bias"),
        "attn.q_a_norm": where(f"{hf}q_a_layernorm.weight", "blk.{i}.attn_q_a_norm.weight"),
        "attn.kv_a_norm": where(f"{hf}kv_a_layernorm.weight", "blk.{i}.attn_kv_a_norm.weight"),
    }
    for index, part in enumerate(("plain", "turned")):
        for ours, theirs, blk in (("attn.q", "q_proj", "attn_q"), ("attn.q_b", "q_b_proj", "attn_q_b")):
            undo = (HeadRows(index, query_rows),)
            out[f"{ours}.{part}"] = where(At(f"{hf}{theirs}.weight", undo), At(f"blk.{{i}}.{blk}.weight", undo))
    for index, part in enumerate(("latent", "turned")):
        for ending, word in (("", "weight"), (".bias", "bias")):
            undo_ = (Rows(index, latent_rows),)
            out[f"attn.kv_a.{part}{ending}"] = where(At(f"{hf}kv_a_proj_with_mqa.{word}", undo_),
                                                     At(f"blk.{{i}}.attn_kv_a_mqa.{word}", undo_))
    alone = {"k_up": At("blk.{i}.attn_k_b.weight", (Transposed(),)), "v_up": At("blk.{i}.attn_v_b.weight")}
    for index, part in enumerate(("k_up", "v_up")):
        both = (HeadRows(index, value_rows), Stacked("heads"))
        out[f"attn.{part}"] = where(At(f"{hf}kv_b_proj.weight", both), (alone[part], At("blk.{i}.attn_kv_b.weight", both)))
    return out
