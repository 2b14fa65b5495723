"""Walks a graph of the ort stage and asks one rule per op for ONNX nodes. No rule, no model."""
from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from uaii.ir.account import Account
from uaii.ir.core import Graph, Op, Value, Weight
from uaii.ir.diag import Internal
from uaii.ir.loc import Loc, site
from uaii.ir.stages import Stage
from uaii.ir.text import name_values
from uaii.ir.types import Tensor

OpT = TypeVar("OpT", bound=Op)
EmitRule = Callable[[Any, "Emit"], None]
RULES: dict[type[Op], EmitRule] = {}
MS = "com.microsoft"
OWN = "ai.uaii"
OPSETS = {"": 23, MS: 1}
IR_VERSION = 10
ELEM = {"f32": TensorProto.FLOAT, "f16": TensorProto.FLOAT16, "i64": TensorProto.INT64, "i32": TensorProto.INT32,
        "u8": TensorProto.UINT8, "i8": TensorProto.INT8, "bool": TensorProto.BOOL}
DIMS = {"B": "batch_size", "S": "sequence_length", "P": "past_sequence_length", "T": "total_sequence_length",
        "L": "logits_length"}


@dataclass
class Body:
    """What the body of a function, or of a branch in it, is written into: nodes over values named inside it."""

    prefix: str = ""  # of the names that a branch makes
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    named: dict[str, str] = field(default_factory=dict)  # constants by content

    def node(self, kind: str, *inputs: str | None, outputs: str | tuple[str, ...] | None = None, domain: str = "",
             **attrs: Any) -> str:
        """One node; returns its first output. A name is made for the output unless `outputs` are given."""
        outs = (outputs,) if isinstance(outputs, str) else outputs or (f"{self.prefix}v{len(self.nodes)}",)
        ins = ["" if i is None else i for i in inputs]
        while ins and not ins[-1]:
            ins.pop()
        name = f"{self.prefix}{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, ins, list(outs), name=name, domain=domain, **attrs))
        return outs[0]

    def const(self, array: Any) -> str:
        a = np.asarray(array)
        name = f"{a.dtype}/{'x'.join(map(str, a.shape))}/{a.tobytes().hex()}"
        if name not in self.named:
            self.named[name] = f"{self.prefix}c{len(self.named)}"
            self.node("Constant", outputs=self.named[name], value=numpy_helper.from_array(a))
        return self.named[name]

    def graph(self, *results: str | onnx.ValueInfoProto, inputs: Sequence[onnx.ValueInfoProto] = ()) -> onnx.GraphProto:
        """The nodes as a branch, or a loop's body, that yields `results`: f32 where only the name is given."""
        outs = [helper.make_tensor_value_info(r, TensorProto.FLOAT, None) if isinstance(r, str) else r for r in results]
        return helper.make_graph(self.nodes, self.prefix or "branch", inputs, outs)


def function(kind: str, inputs: tuple[str, ...], outputs: tuple[str, ...], body: Callable[[Body], None]) -> onnx.FunctionProto:
    """A function of our domain, which onnxruntime inlines when it loads the model."""
    made = Body()
    body(made)
    return helper.make_function(OWN, kind, list(inputs), list(outputs), made.nodes,
                                [helper.make_opsetid(d, v) for d, v in OPSETS.items()])


def emits(kind: type[OpT]) -> Callable[[Callable[[OpT, Emit], None]], Callable[[OpT, Emit], None]]:
    """Registers the rule that turns an op into nodes."""
    def put(rule: Callable[[OpT, Emit], None]) -> Callable[[OpT, Emit], None]:
        if kind in RULES:
            raise TypeError(f"{kind.name} has two emission rules")
        RULES[kind] = rule
        return rule
    return put


@dataclass
class Emit:
    """What a rule writes into: nodes named by where they stand, small constants, value names."""

    names: dict[Value, str]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    init: dict[str, onnx.TensorProto] = field(default_factory=dict)
    origins: dict[str, tuple[Op, Loc | None]] = field(default_factory=dict)
    functions: list[onnx.FunctionProto] = field(default_factory=list)
    views: dict[str, tuple[Weight, int]] = field(default_factory=dict)  # initializers that are one element of a weight
    op: Op | None = None

    def call(self, kind: str, inputs: Mapping[str, Value | str | None], outputs: tuple[str, ...],
             body: Callable[[Body], None]) -> None:
        """One node of our own domain over the op's results, and the function it stands for: `body` writes that in terms of
        the inputs that are given, under their names here, and of `outputs`. Bodies that differ are overloads of one name."""
        given = {n: v for n, v in inputs.items() if v is not None}
        made = function(kind, tuple(given), outputs, body)
        alike = [f for f in self.functions if f.name == kind]
        number = next((i for i, f in enumerate(alike) if list(f.node) == list(made.node) and f.input == made.input), len(alike))
        made.overload = str(number) if number else ""
        self.functions += [made] if number == len(alike) else []
        self.node(kind, *given.values(), domain=OWN)
        self.nodes[-1].overload = made.overload

    def node(self, kind: str, *inputs: Value | str | None, outputs: tuple[Value | str, ...] | None = None,
             domain: str = "", label: str = "", **attrs: Any) -> str:
        """One node; returns its first output's name. None is an absent optional input; `label` names the node."""
        assert self.op is not None
        outs = [self.name(o) for o in (self.op.results if outputs is None else outputs)]
        stem = f"/{site(self.op.loc) or self.op.name}/{label or kind}".replace("//", "/")
        name, n = stem, 1
        while name in self.origins:
            name, n = f"{stem}_{n}", n + 1
        ins = ["" if i is None else self.name(i) for i in inputs]
        while ins and not ins[-1]:
            ins.pop()
        self.nodes.append(helper.make_node(kind, ins, outs, name=name, domain=domain, **attrs))
        self.origins[name] = (self.op, self.op.loc)
        return outs[0]

    def element(self, stack: Value, index: int) -> str:
        """The initializer of stack[index]: the writer lets it lie on the stack's own bytes."""
        assert isinstance(stack, Weight)
        name = f"{weight_name(stack)}.{index}"
        self.views[name] = stack, index
        return name

    def name(self, v: Value | str) -> str:
        if isinstance(v, Weight):
            return weight_name(v)
        return v if isinstance(v, str) else self.names[v].removeprefix("%")

    def temp(self, what: str) -> str:
        """A name for a value between two nodes of one rule."""
        assert self.op is not None
        return f"{self.name(self.op.results[0])}/{what}"

    def const(self, array: Any, name: str | None = None) -> str:
        """A small constant, stored in the model once per content."""
        a = np.asarray(array)
        name = name or f"const/{a.dtype}/{'x'.join(map(str, a.shape))}/{a.tobytes().hex()}"
        self.init.setdefault(name, numpy_helper.from_array(a, name))
        return name


def emit(graph: Graph) -> tuple[onnx.ModelProto, Emit]:
    """The model without its weights' data: every weight of the graph is an initializer that the writer adds.

    Raises Internal E301 for ops without a rule, E302 when a rule leaves an operand or attribute unread.
    """
    _load_rules()
    if graph.stage != Stage.ORT:
        raise Internal("E303", f"emission takes the ort stage, not {graph.stage}")
    e = Emit(name_values(graph))
    missing = {op.name: op for op in graph.ops if type(op) not in RULES}
    if missing:
        raise Internal("E301", f"no ONNX rule for {', '.join(missing)}", next(iter(missing.values())).loc,
                       hint="run the passes that lower it, or add a rule under backends/onnx/rules/")
    for op in graph.ops:
        e.op, account = op, Account()
        RULES[type(op)](account.watch(op), e)
        if unread := account.unread():
            raise Internal("E302", f"the ONNX rule for {op.name} never reads {', '.join(f for _, f in unread)}", op.loc,
                           why="what a rule does not read, the model does not say")
    outputs = []
    for label, v in zip(graph.output_names, graph.outputs, strict=True):
        if e.name(v) != label:
            e.nodes.append(helper.make_node("Identity", [e.name(v)], [label], name=f"/outputs/{label}"))
        outputs.append(info(label, v.type))
    for v in graph.inputs:
        if v.default is not None:
            e.const(np.asarray(v.default, np.int64), v.name)
    inputs = [info(v.name, v.type) for v in graph.inputs]
    g = helper.make_graph(e.nodes, graph.name, inputs, outputs, list(e.init.values()))
    opsets = OPSETS | ({OWN: 1} if e.functions else {})
    model = helper.make_model(g, ir_version=IR_VERSION, producer_name="uaii", functions=e.functions,
                              opset_imports=[helper.make_opsetid(d, v) for d, v in opsets.items()])
    return model, e


def weight_name(w: Weight) -> str:
    """The initializer's name: weights and values share one name space in ONNX."""
    return f"weights/{w.name}"


def info(name: str, t: Tensor) -> onnx.ValueInfoProto:
    shape = [DIMS.get(d, d) if isinstance(d, str) else d for d in t.shape]
    return helper.make_tensor_value_info(name, ELEM[t.elem], shape)


def _load_rules() -> None:
    from uaii.backends.onnx import rules
    for module in pkgutil.iter_modules(rules.__path__):
        importlib.import_module(f"{rules.__name__}.{module.name}")
