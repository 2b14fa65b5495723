"""Which exact form of a packed product is taken: the one that the target's table says costs least, and the journal says so."""
from __future__ import annotations

from dataclasses import replace

import pytest
import uir

from uaii.backends.onnx.capabilities import CPU
from uaii.ir.core import Graph
from uaii.ir.ops import BlockSum, Cut, MatMulNBits
from uaii.ir.parse import parse
from uaii.ir.target import Kernel, Target
from uaii.passes.base import Entry, run
from uaii.passes.pack_weights import PackLinear


def linear(kind: str, k: int) -> Graph:
    return parse(f"""graph @g stage=ort dims(B, S) (
  %x: f32[B,S,{k}]
) {{
  @w : {kind}[8,{k}] = "w":{kind}[8,{k}]
  %y = linear %x, @w : f32[B,S,8]
  return y=%y
}}""")


def packed(target: Target, graph: Graph) -> tuple[Graph, str]:
    journal: list[Entry] = []
    return run(graph, [PackLinear(target)], journal), journal[0].says


def product(graph: Graph) -> MatMulNBits:
    return next(op for op in graph.ops if isinstance(op, MatMulNBits))


def where(**changes: dict[tuple[int, int], float]) -> Target:
    """The CPU with other rows for packed products: {(bits, block): cost}."""
    rows = [Kernel(MatMulNBits, "MatMulNBits", attrs={"bits": (bits,), "block": (block,), "int8_activations": (True,)}, cost=cost)
            for (bits, block), cost in changes["rows"].items()]
    return replace(CPU, kernels=(*(k for k in CPU.kernels if k.op is not MatMulNBits), *rows))


@pytest.mark.parametrize(("kind", "rows", "taken"), [
    ("q4_0", {(4, 32): 0.3, (8, 32): 0.35}, (4, 32)), ("q4_0", {(4, 32): 0.4, (8, 32): 0.35}, (8, 32)),
    ("q4_0", {(8, 16): 0.4}, (8, 16)), ("q4_k", {(4, 16): 0.1, (4, 32): 0.3, (8, 16): 0.4}, (4, 16)),
    ("q8_0", {(4, 32): 0.1, (8, 32): 0.35, (8, 16): 0.2}, (8, 16)), ("q6_k", {(8, 32): 0.1, (8, 16): 0.9}, (8, 16)),
    ("q5_1", {(4, 32): 0.1, (8, 32): 0.35}, (8, 32)),
])
def test_the_cheapest_form_that_is_exact(kind: str, rows: dict[tuple[int, int], float], taken: tuple[int, int]) -> None:
    """Fewer bits than the layout's integers, or longer blocks than its own, are never exact and never taken."""
    graph = linear(kind, 256)
    got, says = packed(where(rows=rows), graph)
    assert (product(got).bits, product(got).block) == taken
    assert f"of the time in f32, {taken[0]} bits x {taken[1]}" in says
    uir.same_numbers(graph, got)


def test_the_journal_says_what_was_taken_and_what_comes_next() -> None:
    """8 rows of 1536: 28,000 for a call and 12,288 multiply-adds, of which 4 bits take 0.30 and 8 bits 0.35 of f32's time."""
    _, says = packed(CPU, linear("q4_0", 1536))
    assert says.endswith("; of the time in f32, 4 bits x 32: 0.79, 8 bits x 32: 0.80")


@pytest.mark.parametrize(("k", "inside"), [(256, True), (1536, True), (1728, True), (1760, False), (4096, False)])
def test_sums_come_from_the_product_while_their_rows_cost_less_than_a_node(k: int, inside: bool) -> None:
    got, says = packed(CPU, linear("q4_1", k))
    assert [type(op) for op in got.ops if isinstance(op, Cut | BlockSum)] == [Cut if inside else BlockSum]
    assert says.partition("in f32, ")[2].startswith("4 bits x 32 with rows of sums:" if inside else "4 bits x 32:")


@pytest.mark.parametrize(("call", "inside"), [(0.0, False), (1e9, True)])
def test_what_a_call_costs_decides(call: float, inside: bool) -> None:
    target = replace(CPU, kernels=tuple(replace(k, call=call) if k.op in (BlockSum, Cut) and call == 0 else
                                        replace(k, call=call) if k.op is BlockSum else k for k in CPU.kernels))
    got, _ = packed(target, linear("q4_1", 256))
    assert any(isinstance(op, Cut) for op in got.ops) == inside


def test_a_layout_that_fits_no_row_stays_and_says_why() -> None:
    got, says = packed(where(rows={(4, 32): 0.1}), linear("q8_0", 256))
    assert not any(isinstance(op, MatMulNBits) for op in got.ops)
    assert says == "MatMulNBits takes bits in {4}, not 8"


def test_costs_are_infinite_where_nothing_runs() -> None:
    op = product(packed(CPU, linear("q4_0", 64))[0])
    assert CPU.cost(op) == 28_000 + 0.3 * 8 * 64
    assert replace(CPU, kernels=()).cost(op) == float("inf")
