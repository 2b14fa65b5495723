"""Small artifact folders with random weights for the run-time tests, and the same model in NumPy (float64)."""
from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


@dataclass(frozen=True)
class Tiny:
    """Embedding, `layers` of attention with a residual, head. `learned` positions are added to the embedding and the
    cache grows by concatenation; otherwise rotary positions, and GroupQueryAttention writes the cache in place."""

    weights: dict[str, np.ndarray]
    vocab: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    learned: bool

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """Logits [S,V] of a whole prompt."""
        w = {name: value.astype(np.float64) for name, value in self.weights.items()}
        count = len(ids)
        x = w["emb"][list(ids)] + (w["wpe"][:count] if self.learned else 0)
        causal = np.where(np.tri(count, dtype=bool), 0.0, -np.inf)
        for i in range(self.layers):
            q, k, v = (self._heads(x @ w[f"{name}.{i}"]) for name in "qkv")
            if not self.learned:
                q, k = self._rotated(q, w), self._rotated(k, w)
            repeat = self.heads // self.kv_heads
            k, v = k.repeat(repeat, axis=0), v.repeat(repeat, axis=0)
            scores = q @ k.transpose(0, 2, 1) / np.sqrt(self.head_dim) + causal
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            mixed = scores / scores.sum(-1, keepdims=True) @ v
            x = x + mixed.transpose(1, 0, 2).reshape(count, -1) @ w[f"o.{i}"]
        return x @ w["head"]

    def _heads(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(len(x), -1, self.head_dim).transpose(1, 0, 2)

    def _rotated(self, x: np.ndarray, w: dict[str, np.ndarray]) -> np.ndarray:
        cos, sin = w["cos"][: x.shape[1]], w["sin"][: x.shape[1]]
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    def greedy(self, ids: Sequence[int], count: int) -> list[int]:
        """The next `count` tokens, each from a whole new run."""
        out = list(ids)
        for _ in range(count):
            out.append(int(self.logits(out)[-1].argmax()))
        return out[len(ids):]


def tiny_model(*, seed: int = 0, vocab: int = 40, layers: int = 2, heads: int = 4, kv_heads: int = 2,
               head_dim: int = 16, context: int = 64, learned: bool = False,
               chain: Sequence[int] | None = None) -> Tiny:
    """Random weights of std 0.3. With `chain` token i is always followed by chain[i]; -1 makes its logits NaN."""
    rng = np.random.default_rng(seed)
    width = 32 if chain is None else len(chain)
    vocab = vocab if chain is None else len(chain)

    def normal(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.3).astype(np.float32)

    weights = {"emb": normal(vocab, width), "wpe": normal(context, width), "head": normal(width, vocab)}
    for i in range(layers):
        weights |= {f"q.{i}": normal(width, heads * head_dim), f"k.{i}": normal(width, kv_heads * head_dim),
                    f"v.{i}": normal(width, kv_heads * head_dim), f"o.{i}": normal(heads * head_dim, width)}
    angle = np.arange(context)[:, None] * 10000.0 ** (-np.arange(head_dim // 2) / (head_dim // 2))
    weights |= {"cos": np.cos(angle).astype(np.float32), "sin": np.sin(angle).astype(np.float32)}
    if chain is not None:
        weights |= {f"o.{i}": np.zeros_like(weights[f"o.{i}"]) for i in range(layers)}
        weights |= {"emb": np.eye(vocab, dtype=np.float32), "head": np.zeros((vocab, vocab), np.float32)}
        for token, following in enumerate(chain):
            weights["head"][token, following] = 10.0
            if following < 0:
                weights["emb"][token] = np.nan
    return Tiny(weights, vocab, layers, heads, kv_heads, head_dim, context, learned)


def write_artifact(folder: Path, tiny: Tiny, *, keeps: bool = True, **manifest: Any) -> Path:
    """The model as an artifact folder; `keeps` gives the graph its num_logits_to_keep, `manifest` overrides entries."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save_model(_graph(tiny, keeps), folder / "model.onnx", save_as_external_data=True,
                    location="model.onnx.data", size_threshold=256)
    (folder / "tokenizer.json").write_text("{}")
    write_manifest(folder, tiny, **manifest)
    return folder


def write_manifest(folder: Path, tiny: Tiny, **manifest: Any) -> None:
    """uaii.json for the files that lie in the folder."""
    files = {path.name: {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
             for path in sorted(folder.iterdir()) if path.name != "uaii.json"}
    entries = {"format": 1, "family": "tiny", "target": "cpu", "context_length": tiny.context,
               "vocab_size": tiny.vocab, "layers": tiny.layers, "kv_heads": tiny.kv_heads, "head_dim": tiny.head_dim,
               "kv_in_place": not tiny.learned, "stop_ids": [], "files": files, "complete": True}
    (folder / "uaii.json").write_text(json.dumps(entries | manifest))


class _Nodes(list[onnx.NodeProto]):
    def add(self, op: str, inputs: Sequence[str], *outputs: str, **attributes: Any) -> str:
        self.append(helper.make_node(op, list(inputs), list(outputs), **attributes))
        return outputs[0]


def _graph(tiny: Tiny, keeps: bool) -> onnx.ModelProto:
    used = ("emb", "head", "wpe") if tiny.learned else ("emb", "head", "cos", "sin")
    weights = {n: v for n, v in tiny.weights.items() if n in used or n[0] in "qkvo" and "." in n}
    weights |= {"zero": np.array(0), "one": np.array(1), "ones": np.array([1]), "end": np.array([2**62])}
    nodes, inputs, outputs = _Nodes(), _io("input_ids", "attention_mask"), []
    x = nodes.add("Gather", ["emb", "input_ids"], "embedded")
    x = _positions(nodes, x) if tiny.learned else _lengths(nodes, x)
    for i in range(tiny.layers):
        past = [f"past_key_values.{i}.{part}" for part in ("key", "value")]
        present = [f"present.{i}.{part}" for part in ("key", "value")]
        for names, dim, side in ((past, "past_sequence_length", inputs), (present, "total_sequence_length", outputs)):
            shape = ["batch_size", tiny.kv_heads, dim, tiny.head_dim]
            side += [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in names]
        q, k, v = (nodes.add("MatMul", [x, f"{name}.{i}"], f"{name}.{i}.out") for name in "qkv")
        if tiny.learned:
            nodes.add("Attention", [q, k, v, "visible", *past], f"mixed.{i}", *present, q_num_heads=tiny.heads,
                      kv_num_heads=tiny.kv_heads)
        else:
            nodes.add("GroupQueryAttention", [q, k, v, *past, "seqlens_k", "total", "cos", "sin"], f"mixed.{i}",
                      *present, domain="com.microsoft", num_heads=tiny.heads, kv_num_heads=tiny.kv_heads, do_rotary=1)
        x = nodes.add("Add", [x, nodes.add("MatMul", [f"mixed.{i}", f"o.{i}"], f"o.{i}.out")], f"x.{i}")
    if keeps:
        weights["num_logits_to_keep"] = np.array(0)
        inputs.append(helper.make_tensor_value_info("num_logits_to_keep", TensorProto.INT64, []))
        start = nodes.add("Reshape", [nodes.add("Neg", ["num_logits_to_keep"], "minus"), "ones"], "start")
        x = nodes.add("Slice", [x, start, "end", "ones"], "kept")
    nodes.add("MatMul", [x, "head"], "logits")
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch_size", "kept", tiny.vocab])
    stored = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "tiny", inputs, [logits, *outputs], stored)
    return helper.make_model(graph, ir_version=10, opset_imports=[
        helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)])


def _io(ids: str, mask: str) -> list[onnx.ValueInfoProto]:
    return [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch_size", dim])
            for name, dim in ((ids, "sequence_length"), (mask, "total_sequence_length"))]


def _lengths(nodes: _Nodes, x: str) -> str:
    nodes.add("ReduceSum", ["attention_mask", "ones"], "sum", keepdims=0)
    nodes.add("Cast", [nodes.add("Sub", ["sum", "one"], "last")], "seqlens_k", to=TensorProto.INT32)
    nodes.add("Squeeze", [nodes.add("Shape", ["attention_mask"], "width", start=1, end=2)], "longest")
    nodes.add("Cast", ["longest"], "total", to=TensorProto.INT32)
    return x


def _positions(nodes: _Nodes, x: str) -> str:
    nodes.add("Squeeze", [nodes.add("Shape", ["attention_mask"], "width", start=1, end=2)], "longest")
    nodes.add("Squeeze", [nodes.add("Shape", ["input_ids"], "size", start=1, end=2)], "count")
    nodes.add("Range", [nodes.add("Sub", ["longest", "count"], "held"), "longest", "one"], "positions")
    nodes.add("Unsqueeze", ["positions", "ones"], "rows")
    nodes.add("LessOrEqual", [nodes.add("Range", ["zero", "longest", "one"], "columns"), "rows"], "visible")
    return nodes.add("Add", [x, nodes.add("Gather", ["wpe", "positions"], "placed")], "x")
