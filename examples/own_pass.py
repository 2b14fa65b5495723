"""A pass of one's own on IR text: python examples/own_pass.py prints a graph before and after."""
from __future__ import annotations

from dataclasses import dataclass

from uaii.ir.ops import Mul, Scale
from uaii.ir.parse import parse
from uaii.ir.text import show
from uaii.passes.base import Answer, Entry, Pass, Rewrite, Why, run

TEXT = """
graph @example stage=core dims(B, S) (
  %x: f32[B,S,8]
  %y: f32[B,S,8]
) {
  %half = scale %x {by=0.5} : f32[B,S,8]
  %a = scale %half {by=4.0} : f32[B,S,8]
  %b = scale %y {by=2.0} : f32[B,S,8]
  %out = mul %a, %b : f32[B,S,8]
  return out=%out
}
"""


@dataclass(frozen=True)
class JoinScales(Pass):
    """scale of scale is one scale."""

    name = "join-scales"
    why = "two constant factors are one"
    root = Scale

    def rule(self, op: Scale, rw: Rewrite) -> Answer:
        inner = rw.producer(op.x, Scale)
        if inner is None:
            return Why("what is scaled is not itself a scaled value")
        return Scale(inner.x, by=inner.by * op.by).results


def main() -> None:
    graph, journal = parse(TEXT), list[Entry]()
    after = run(graph, [JoinScales()], journal)
    print(show(graph))
    print(show(after))
    for entry in journal:
        print("applied " if entry.applied else "declined", entry.at or "-", entry.says)
    assert sum(isinstance(op, Scale) for op in after.ops) == 2 and isinstance(after.ops[-1], Mul)


if __name__ == "__main__":
    main()
