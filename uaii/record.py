"""What a compile leaves behind for whoever asks why: the pipeline, the accounts, weights, and where each node came from."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uaii import measure
from uaii.backends.onnx.tables import plan
from uaii.ir import loc as L
from uaii.ir.core import Graph, Op, Value, Weight
from uaii.ir.ops import ExpertBranches, ExpertKernel
from uaii.ir.recipe import Recipe
from uaii.ir.text import name_values, show_attr
from uaii.ir.types import FP8
from uaii.passes.base import Entry

if TYPE_CHECKING:
    from uaii.compiler import Compiled

LOWER = "lower"


@dataclass(frozen=True)
class Step:
    """A pass that has run: the stage it left the graph in, its sentence, how often it applied and declined, and the
    graph's ops before and after, its weights, and the weight bytes that one decoding step reads."""

    stage: str
    pass_: str
    why: str
    applied: int
    declined: int
    ops_before: int
    ops: int
    weights: int
    read_per_token: int


def first_step(graph: Graph) -> Step:
    """The step that stands for building the model's graph, before any pass."""
    return Step(str(graph.stage), LOWER, f"the graph of the family {graph.name}, every config key and tensor accounted for",
                1, 0, 0, len(graph.ops), len(graph.weights), measure.read_per_token(graph))


def step(name: str, why: str, before: Step, graph: Graph, entries: Sequence[Entry]) -> Step:
    """The step of a pass that left `graph` and wrote `entries`; a reason that all of them give is its sentence."""
    applied, said = sum(e.applied for e in entries), {e.says for e in entries if e.applied}
    why = said.pop() if len(said) == 1 else why
    return Step(str(graph.stage), name, why, applied, len(entries) - applied, before.ops, len(graph.ops),
                len(graph.weights), measure.read_per_token(graph))


def record(done: Compiled, nodes: Mapping[str, tuple[Op, L.Loc | None]]) -> dict[str, Any]:
    """The part of the manifest that explains the artifact.

    `nodes` are the ONNX nodes' origins as the emitter noted them; those that compute a weight at load are told from the graph.
    """
    names = name_values(done.graph)
    return {
        "family": done.lowered.family.name, **done.lowered.hparams, "context_length": done.context,
        "target": done.options["target"], "options": done.options, "accepted_keys": done.lowered.config.accepted,
        "sources": {**done.checkpoint.fingerprint(), "path": str(done.checkpoint.path.resolve())},
        "account": done.lowered.config.account(), "tensors": tensors(done),
        "pipeline": [vars(s) for s in done.steps], "journal": [vars(e) for e in done.journal],
        "kv_bytes_per_token": measure.cache_per_token(done.graph),
        "weights": {k: weight(w) for k, w in done.graph.weights.items()},
        "origins": {**{node: computed(w) for node, w in plan(done.graph).made_for.items()},
                    **{node: origin(op, names) for node, (op, _) in nodes.items()}},
    }


def origin(op: Op, names: Mapping[Value, str]) -> dict[str, Any]:
    """An op: results, operands, attributes with the keys they came from, passes oldest first, the lines that built it."""
    attrs = {k: {"value": show_attr(v), "from": _leaves(op.attr_locs.get(k))} for k, v in op.attrs.items()
             if v != op.defaults[k] or k in op.attr_locs}
    return {"value": names[op.results[0]].lstrip("%"), "results": [f"{names[r]}: {r.type}" for r in op.results], "op": op.name,
            "operands": {n: names[v] for n in op.operand_names if (v := getattr(op, n)) is not None}, "attrs": attrs,
            "passes": L.passes(op.loc), "from": _leaves(op.loc),
            "reads": [v.name for v in op.operands if isinstance(v, Weight)]}


def computed(w: Weight) -> dict[str, Any]:
    """A node that computes a weight: the same form as an op's origin."""
    return {"value": w.name, "results": [f"@{w.name}: {w.type}"], "op": w.recipe.op, "operands": {}, "attrs": {},
            "passes": L.passes(w.loc), "from": _leaves(w.loc), "reads": [w.name]}


def weight(w: Weight) -> dict[str, Any]:
    """A weight: its type, its recipe, the stored tensors in it, and the passes that made it."""
    return {"type": str(w.type), "recipe": str(w.recipe), "tensors": list(w.recipe.loads), "passes": L.passes(w.loc),
            "from": _leaves(w.loc)}


def _leaves(loc: L.Loc | None) -> list[str]:
    return list(dict.fromkeys(L.show_leaf(x) for x in L.leaves(loc))) if loc is not None else []


def _packing(quants: Recipe) -> str:
    blocks, bits = quants.args
    return f"{blocks.type.elem} -> {bits} bit"


def experts_held(graph: Graph) -> str | None:
    """How a finished graph holds the matrices of experts: from which layout to how many bits, or in f32; None without any."""
    stored = [w.recipe for op in graph.ops if isinstance(op, ExpertKernel | ExpertBranches) for w in (op.fc1, op.fc2)
              if isinstance(w, Weight)]
    packed = [_packing(p) for recipe in stored for p in recipe.parts if p.op == "quants"]
    return ", ".join(dict.fromkeys(packed or ["f32" for _ in stored])) or None


def tensors(done: Compiled) -> list[dict[str, Any]]:
    """Per stored tensor: type and bytes in, its use in the family, the initializers it feeds, how it is held (`packing` says
    from which layout to how many bits), whether the values are exact and, of those that were rounded, the error as parts of the
    values' root mean square: its own (rms) and the largest; None when nothing was written."""
    users: dict[str, list[str]] = {}
    packings: dict[str, str] = {}
    values: set[str] = set()
    rounded: set[str] = set()
    for w in done.graph.weights.values():
        recipe = w.recipe if w.recipe.op != "view" else done.graph.weights[w.recipe.args[0]].recipe
        for name in recipe.loads:
            users.setdefault(name, []).append(w.name)
        for part in recipe.parts:
            packings |= dict.fromkeys(part.loads, _packing(part)) if part.op == "quants" else {}
            values |= set(part.loads) if part.op in ("dequant", FP8) else set()
            rounded |= set(part.loads) if part.op == "quantise" else set()
    use = {row["tensor"]: row["use"] for row in done.lowered.tensor_account()}
    report = []
    for name, t in done.checkpoint.tensors.items():
        held = users.get(name, [])
        how = ("unused" if not held else "quantised" if name in rounded else "packed" if name in packings else
               "dequantised to f32" if name in values else "float")
        loss = done.losses.get(name)
        report.append({"tensor": name, "stored": str(t.type), "bytes": t.nbytes, "use": use[name], "held": how,
                       "packing": packings.get(name), "exact": t.type.elem != "f64" and name not in rounded,
                       "error": loss and loss.record(), "initializers": held})
    return report
