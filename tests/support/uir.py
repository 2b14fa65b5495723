"""Cases of IR text: a graph, a pass list, and what must come out. The numbers of both sides are compared too."""
from __future__ import annotations

import ast
import dataclasses
import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from uaii.backends import reference
from uaii.backends.onnx.capabilities import CPU
from uaii.backends.rows import whole
from uaii.ir import ops
from uaii.ir.core import Graph, Weight
from uaii.ir.diag import Diagnostic
from uaii.ir.parse import parse
from uaii.ir.recipe import Recipe
from uaii.ir.text import show
from uaii.ir.types import BLOCKS, FLOATS, INTS, Tensor
from uaii.passes.base import AnyPass, Entry, run
from uaii.passes.pipelines import WEIGHTS, pipeline

HEAD = re.compile(r"^// (case|becomes|fails|declines)\b ?(.*)$", re.M)
CONTEXT = 16  # positions of the rotation tables in the cases
PASSES: dict[str, AnyPass] = {p.name: p for weights in WEIGHTS for p in pipeline(CPU, CONTEXT, weights)}
DIMS = {"B": 2, "S": 3, "P": 4, "T": 7, "R": 6}
# Recipes whose values are rounded to f32; everywhere else the random data is chosen so that f32 arithmetic is exact.
ROUNDED = {"rope_freqs", "rope_cos", "rope_sin", "divide"}
# Where a block's f16 scales are (ggml-common.h).
SCALES = {"q4_0": (0,), "q4_1": (0, 2), "q5_0": (0,), "q5_1": (0, 2), "q8_0": (0,), "q2_k": (80, 82), "q3_k": (108,),
          "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,), "iq4_nl": (0,), "iq4_xs": (0,)}


@dataclass(frozen=True)
class Case:
    """`kind` is becomes, fails or declines; `arg` the code or reason; `after` the text that must come out."""

    file: Path
    number: int
    name: str
    passes: tuple[str, ...]
    before: str
    kind: str
    arg: str
    after: str


def read_cases(file: Path) -> list[Case]:
    """The cases of one .uir file, in order."""
    parts = HEAD.split(file.read_text())[1:]
    chunks = list(zip(parts[::3], parts[1::3], parts[2::3], strict=True))
    made = []
    for n, (given, want) in enumerate(zip(chunks[::2], chunks[1::2], strict=True)):
        assert given[0] == "case" and want[0] != "case", f"{file}: {given[1]} has no outcome"
        name, _, passes = given[1].partition(" : ")
        made.append(Case(file, n, name, tuple(passes.split()), given[2], want[0], want[1].strip(), want[2]))
    return made


def pass_named(word: str) -> AnyPass:
    """`pack-linear` or, with options replaced, `pack-linear(int8_activations=False)`."""
    name, _, options = word.partition("(")
    pairs = (o.split("=") for o in options.removesuffix(")").split(",") if o)
    return dataclasses.replace(PASSES[name], **{k: ast.literal_eval(v) for k, v in pairs})


def check(case: Case, bless: bool = False) -> None:
    """Raises AssertionError when the case does not hold; `bless` writes what came out into the file instead."""
    graph, passes = parse(case.before), [pass_named(w) for w in case.passes]
    round_trips(graph)
    if case.kind == "fails":
        check_failure(case, graph, passes)
        return
    before_last = run(graph, passes[:-1])
    journal: list[Entry] = []
    after = run(before_last, passes[-1:], journal)
    round_trips(after)
    if case.kind == "declines":
        reasons = [e.says for e in journal if not e.applied]
        assert case.arg in reasons, f"declined for {reasons}, not for {case.arg!r}"
        same_text(show(after), show(before_last))
    elif bless:
        _rewrite(case, show(after))
        return
    else:
        same_text(show(after), show(parse(case.after)))
    if has_meaning(graph) and has_meaning(after):
        same_numbers(graph, after)


def check_failure(case: Case, graph: Graph, passes: Sequence[AnyPass]) -> None:
    code, _, says = case.arg.partition(" ")
    try:
        run(graph, passes)
    except Diagnostic as error:
        assert error.code == code, f"failed with {error.code}, not {code}: {error}"
        assert says in str(error), f"{says!r} is not in: {error}"
        return
    raise AssertionError(f"did not fail with {code}")


def same_text(got: str, want: str) -> None:
    assert got == want, "\n" + "\n".join(difflib.unified_diff(want.splitlines(), got.splitlines(), "wanted", "got",
                                                              lineterm="", n=9))


def round_trips(graph: Graph) -> None:
    """parse(show(g)) prints as g, with and without origins."""
    for locs in (False, True):
        text = show(graph, locs)
        same_text(show(parse(text), locs), text)


def _rewrite(case: Case, text: str) -> None:
    parts = HEAD.split(case.file.read_text())
    parts[6 * case.number + 6] = f"\n{text}\n"
    out = parts[0]
    for kind, arg, body in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        out += f"// {kind} {arg}".rstrip() + body
    case.file.write_text(out.rstrip("\n") + "\n")


# --- numbers


def has_meaning(graph: Graph) -> bool:
    """Whether the reference can run it: scaled rotation means what fold-rope says, so it has none before that."""
    return all(type(op) in reference.RULES and not (isinstance(op, ops.Rope) and op.scaling) for op in graph.ops)


def same_numbers(before: Graph, after: Graph, seed: int = 0) -> None:
    """Both graphs on the same random inputs and stored tensors, in f64."""
    source, given = RandomSource(before, seed=seed), feeds(before, seed)
    used = set[str]().union(*(_ops_of(w.recipe) for w in after.weights.values()))
    near = 0.15 if "quantise" in used else 2e-6 if ROUNDED & used else 1e-12
    results = [reference.evaluate(g, given, source) for g in (before, after)]
    for a, b in zip(*results, strict=True):
        assert np.isfinite(a).all()
        np.testing.assert_allclose(b, a, rtol=0, atol=near * max(1.0, float(np.abs(a).max())))


def _ops_of(recipe: Recipe) -> set[str]:
    return {recipe.op}.union(*(_ops_of(a) for a in recipe.args if isinstance(a, Recipe)))


class RandomSource:
    """A stored tensor of the right type for every name that a graph loads."""

    def __init__(self, graph: Graph, seed: int = 0) -> None:
        self.seed = seed
        self.types: dict[str, Tensor] = {}
        for w in graph.weights.values():
            self._find(w.recipe)

    def _find(self, recipe: Recipe) -> None:
        if recipe.op == "load":
            self.types[recipe.args[0]] = recipe.args[1]
        for a in recipe.args:
            if isinstance(a, Recipe):
                self._find(a)

    def read(self, name: str) -> Any:
        rng = np.random.default_rng([self.seed, *name.encode()])
        return stored(self.types[name], rng)


def coarse(rng: np.random.Generator, shape: Sequence[int]) -> Any:
    """f64 values of few bits, so that sums and products of some of them are exact in f32; none is zero."""
    return (rng.integers(1, 96, shape) * rng.choice([-1, 1], shape)) / 64.0


def stored(t: Tensor, rng: np.random.Generator) -> Any:
    """Random values as a checkpoint stores them: bf16 as u16 patterns, blocks as u8 rows with finite scales."""
    if t.elem == "bf16":
        return (coarse(rng, t.sizes).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if t.elem in BLOCKS:
        return blocks(t, rng)
    return coarse(rng, t.sizes).astype({"f32": np.float32, "f16": np.float16, "f64": np.float64}[t.elem])


def blocks(t: Tensor, rng: np.random.Generator) -> Any:
    """u8 [..., row bytes]: every bit pattern in the integers, few bits in the scales."""
    size, nbytes = BLOCKS[t.elem].size, BLOCKS[t.elem].nbytes
    raw = rng.integers(0, 256, (*t.sizes[:-1], t.sizes[-1] // size, nbytes)).astype(np.uint8)
    for at in SCALES[t.elem]:
        scale = (coarse(rng, (*raw.shape[:-1], 1)) / 8).astype(np.float16)
        raw[..., at:at + 2] = scale.view(np.uint8)
    return raw.reshape(*t.sizes[:-1], -1)


def feeds(graph: Graph, seed: int = 0) -> dict[str, Any]:
    """Random inputs: ids below the table's rows, a mask of ones, positions and lengths that follow P past tokens."""
    rng = np.random.default_rng([seed, 1])
    rows = [op.operands[1].type.sizes[0] for op in graph.ops if isinstance(op, ops.Embedding | ops.EmbeddingNBits)]
    made: dict[str, Any] = {}
    for v in graph.inputs:
        shape = [DIMS.get(d, d) if isinstance(d, str) else d for d in v.type.shape]
        if v.default is not None:
            continue
        if v.type.elem in (*FLOATS, *BLOCKS):
            made[v.name] = coarse(rng, shape)
        elif v.type.shape == ("B", "T"):
            made[v.name] = np.ones(shape, np.int64)
        elif v.type.elem == "i32":
            made[v.name] = np.full(shape, DIMS["T"] - 1 if shape else DIMS["T"], np.int32)
        elif v.name.startswith("pos"):
            made[v.name] = np.broadcast_to(np.arange(DIMS["P"], DIMS["T"]), shape)
        else:
            assert v.type.elem in INTS
            made[v.name] = rng.integers(0, min(rows, default=2), shape)
    return made


def weight_values(graph: Graph, name: str, source: Any) -> Any:
    """One weight's values, as the reference sees them."""
    w = graph.weights[name]
    assert isinstance(w, Weight)
    return whole(w, graph, source)
