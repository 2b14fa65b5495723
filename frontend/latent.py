"""Multi-head latent attention, as families share it: the keys of its sizes, the names of its tensors, the block."""
from __future__ import annotations

import math
from typing import Any

from uaii.frontend.blocks import Step
from uaii.frontend.build import Build
from uaii.frontend.common import LAYER
from uaii.frontend.rope import Rope
from uaii.frontend.tensors import At, HeadRows, Rows, Stacked, Where, where
from uaii.ir import ops
from uaii.ir.core import Input, Value
from uaii.ir.known import plain
from uaii.ir.types import Tensor


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
                     interleaved: bool = True, bias: Any = None) -> Value:
    """What heads read of the past through one latent row for each token [B,S,H*v].

    Each query has `nope` plain features and `turned` rotated ones; the new row is a normed latent and one rotated key for all
    heads. `q_rank` 0 means queries without a low-rank middle.
    """
    source = b.rms_norm(b.linear(h, "attn.q_a", c.q_rank, i, bias), "attn.q_a_norm", eps, i) if plain(c.q_rank) else h
    stem = "attn.q_b" if plain(c.q_rank) else "attn.q"
    q = ops.SplitHeads(b.linear(source, f"{stem}.plain", c.heads * c.nope, i), n=c.heads).out
    turned = ops.SplitHeads(b.linear(source, f"{stem}.turned", c.heads * c.turned, i), n=c.heads).out
    latent = b.rms_norm(b.linear(h, "attn.kv_a.latent", c.kv_rank, i, bias), "attn.kv_a_norm", eps, i)
    key_ = ops.SplitHeads(b.linear(h, "attn.kv_a.turned", c.turned, i, bias), n=1).out
    turned, key_ = (b.rope(x, rope, step.positions, c.turned, interleaved) for x in (turned, key_))
    return attend_latent(b, i, step, q, turned, latent, key_, value_dim=int(plain(c.value_dim)), scale=scale)


def attention_factor(rope: Rope) -> float:
    """The square of YaRN's softmax factor, which DeepSeek puts into the scale of scores where `mscale_all_dim` is stated
    (modeling_deepseek_v3.py, yarn_get_mscale)."""
    params: dict[str, Any] = dict(rope.scaling.params) if rope.scaling else {}
    of_all, s = params.get("mscale_all_dim"), params.get("factor", 1.0)
    return (0.1 * of_all * math.log(s) + 1.0) ** 2 if of_all and s > 1 else 1.0


def query_rows(c: Any) -> tuple[int, int]:
    """Rows of each head's query: plain, rotated."""
    return c.nope, c.turned


def value_rows(c: Any) -> tuple[int, int]:
    """Rows of each head in kv_b: key, value."""
    return c.nope, c.value_dim


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
    for index, part in enumerate(("k_up", "v_up")):
        both = (HeadRows(index, value_rows), Stacked("heads"))
        out[f"attn.{part}"] = where(At(f"{hf}kv_b_proj.weight", both), At("blk.{i}.attn_kv_b.weight", both))
    return out
