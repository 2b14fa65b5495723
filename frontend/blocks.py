"""The pieces that decoder-only families share: the step's inputs, cached attention, gated MLP, head, and the walk over layers."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from uaii.frontend.build import Build
from uaii.frontend.config import Config, Entry
from uaii.frontend.rope import Rope
from uaii.frontend.temperature import Temperature
from uaii.ir import loc as L
from uaii.ir import ops
from uaii.ir.core import Input, Value
from uaii.ir.diag import Malformed, Unsupported
from uaii.ir.known import known, plain
from uaii.ir.types import Tensor

DIMS = {"B": "", "S": "", "P": "", "T": "P+S", "L": ""}

# Hugging Face's names (ACT2FN) to ours; a name that is not here is refused.
ACT_NAMES = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh", "relu": "relu", "relu2": "relu2", "quick_gelu": "quick_gelu",
}


@dataclass(frozen=True)
class Step:
    """What one call gives to every layer: mask [B,T], positions [B,S], and a layer's past keys and values."""

    mask: Value
    positions: Value


def inputs(b: Build) -> tuple[Value, Value, Step]:
    """Declares input_ids [B,S], attention_mask [B,T] and num_logits_to_keep (0 = all): (ids, keep, step)."""
    ids, mask = Input(Tensor("i64", ("B", "S")), "input_ids"), Input(Tensor("i64", ("B", "T")), "attention_mask")
    keep = Input(Tensor("i64", ()), "num_logits_to_keep", default=0)
    b.graph.inputs += [ids, mask, keep]
    with b.scope("positions"):
        return ids, keep, Step(mask, ops.Positions(mask, ids).out)


def attend(b: Build, i: int, step: Step, q: Value, k: Value, v: Value, *, scale: float, softcap: float = 0.0,
           window: int = 0, sinks: Value | None = None) -> Value:
    """Attention of layer `i` over its cache; declares the cache's inputs and outputs [B,K,P or T,d]."""
    _, _, kv, d = k.type.shape
    past = [Input(Tensor("f32", ("B", kv, "P", d)), f"past_key_values.{i}.{n}") for n in ("key", "value")]
    b.graph.inputs += past
    with b.scope("attend"):
        op = ops.Attention(q, k, v, past[0], past[1], step.mask, scale=scale, softcap=softcap, window=window,
                           sinks=sinks)
    out, key_, value = op.results
    key_.name, value.name = f"present.{i}.key", f"present.{i}.value"
    b.graph.outputs += [key_, value]
    b.graph.output_names += [f"present.{i}.key", f"present.{i}.value"]
    return out


def heads(b: Build, c: Any, h: Value, i: int, bias: Any) -> tuple[Value, Value, Value]:
    """q, k, v as heads [B,S,n,d], not rotated."""
    q = ops.SplitHeads(b.linear(h, "attn.q", c.heads * c.head_dim, i, bias), n=c.heads).out
    k = ops.SplitHeads(b.linear(h, "attn.k", c.kv_heads * c.head_dim, i, bias), n=c.kv_heads).out
    v = ops.SplitHeads(b.linear(h, "attn.v", c.kv_heads * c.head_dim, i, bias), n=c.kv_heads).out
    return q, k, v


def rotated_heads(b: Build, c: Any, h: Value, i: int, step: Step, rope: Rope, bias: Any,
                  interleaved: bool = False) -> tuple[Value, Value, Value]:
    """q, k, v as heads [B,S,n,d], q and k rotated over the rotary width."""
    q, k, v = heads(b, c, h, i, bias)
    return rotated(b, c, q, step, rope, interleaved), rotated(b, c, k, step, rope, interleaved), v


def rotated(b: Build, c: Any, x: Value, step: Step, rope: Rope, interleaved: bool = False) -> Value:
    """Heads [B,S,n,d] rotated over the rotary width, in pairs of halves or, `interleaved`, of neighbours."""
    return b.rope(x, rope, step.positions, c.rotary_dim, interleaved)


def temperature(b: Build, step: Step, t: Temperature) -> Value | None:
    """The factors [B,S] of queries by position, or None where every factor is 1."""
    if not t.beta:
        return None
    with b.scope("temperature"):
        return ops.Temperature(step.positions, beta=t.beta, length=t.length).out


def tempered(b: Build, q: Value, factors: Value | None) -> Value:
    """Queries [B,S,n,d] times the factors of their positions; before a rotation or after it is the same."""
    if factors is None:
        return q
    with b.scope("temperature"):
        return ops.ScaleRows(q, factors).out


def gated_mlp(b: Build, x: Value, i: int, width: int, act: str, bias: Any = None) -> Value:
    """down(act(gate x) * up x)."""
    gate, up = b.linear(x, "ffn.gate", width, i, bias), b.linear(x, "ffn.up", width, i, bias)
    with b.scope("ffn/act"):
        h = ops.Gated(gate, up, act=act).out
    return b.linear(h, "ffn.down", int(x.type.shape[-1]), i, bias)


def mlp(b: Build, x: Value, i: int, width: int, act: str, bias: Any = None) -> Value:
    """down(act(up x))."""
    h = b.linear(x, "ffn.up", width, i, bias)
    with b.scope("ffn/act"):
        h = ops.Activation(h, act=act).out
    return b.linear(h, "ffn.down", int(x.type.shape[-1]), i, bias)


def embed(b: Build, c: Any, ids: Value) -> Value:
    """Token embeddings [B,S,width]."""
    with b.scope("embed"):
        return ops.Embedding(ids, b.weight("embed", vocab(b, c), c.width)).out


def placed(b: Build, c: Any, x: Value, step: Step) -> Value:
    """x [B,S,width] plus the learned embeddings of its positions, one row for each of max_positions."""
    with b.scope("embed_positions"):
        return ops.Add(x, ops.Embedding(step.positions, b.weight("positions", c.max_positions, c.width)).out).out


def head(b: Build, c: Any, x: Value, bias: Any = None) -> Value:
    """Logits [B,L,vocab]: the checkpoint's own head where it has one, else the embedding table when the model is tied.

    `bias` is the family's word on `head.bias`; None leaves it to the checkpoint's tensors.

    A stored head is used even when the configuration says tied, as transformers 5 does when the two differ. In a GGUF
    `tied` is whether llama.cpp takes the embedding table when the architecture's file has no output.weight.
    """
    rows = vocab(b, c)
    own = b.place_of("head") is not None
    table = b.weight("embed", rows, c.width) if c.tied and not own else b.weight("head", rows, c.width)
    with b.scope("head"):
        shift = b.optional("head.bias", rows, declared=bias) if "head.bias" in b.tensors else None
        return ops.Linear(x, table, shift).out


def vocab(b: Build, c: Any) -> int:
    """Rows of the embedding table; in a GGUF the table itself says."""
    if b.ckpt.format == "hf":
        return int(c.vocab)
    at = b.place_of("embed") or b.place_of("head")
    return int(b.ckpt.tensors[at.name].type.sizes[0]) if at else 1


def capped(b: Build, logits: Value, cap: float) -> Value:
    """cap * tanh(logits / cap), or the logits when the cap is 0."""
    if not cap:
        return logits
    with b.scope("softcap"):
        return ops.Softcap(logits, cap=cap).out


def last(b: Build, x: Value, keep: Value) -> Value:
    """Only the positions whose logits were asked for."""
    with b.scope("last"):
        return ops.LastPositions(x, keep).out


def result(b: Build, logits: Value) -> None:
    logits.name = "logits"
    b.graph.outputs.insert(0, logits)
    b.graph.output_names.insert(0, "logits")


class ActKey(Entry):
    """The activation: `hf` is its key, `gguf` what llama.cpp computes for the architecture, `default` what absence means.

    `reads` are words that this family takes for others, which its origin then says.
    """

    def __init__(self, hf: str, gguf: str, default: str, reads: Mapping[str, str]) -> None:
        self.hf, self.gguf, self.default, self.reads = hf, gguf, default, reads

    def keys(self, fmt: str) -> tuple[str, ...]:
        return (self.hf,) if fmt == "hf" else ()

    def read(self, c: Config) -> Any:
        if c.fmt == "gguf":
            return self.gguf
        said = c.raw(self.hf) if c.has(self.hf) else self.default
        if not isinstance(said, str):
            raise Malformed("F104", f"{self.hf} must be a string, is {said!r}", c.at(self.hf))
        if said not in ACT_NAMES:
            raise Unsupported("F110", f"unsupported {self.hf}={said}", c.at(self.hf),
                              hint=f"known activations: {', '.join(ACT_NAMES)}")
        at = c.at(self.hf)
        if said not in self.reads:
            return known(ACT_NAMES[said], at)
        meant = self.reads[said]
        return known(ACT_NAMES[meant], L.Key(at.file, at.path, f"{at.value}, which {c.family} means as {meant}"))


def activation(hf: str, gguf: str, default: str, reads: Mapping[str, str] | None = None) -> Any:
    """Declares the activation key."""
    return ActKey(hf, gguf, default, reads or {})


def layers(c: Any) -> range:
    return range(plain(c.layers))
