"""A graph as a networkx DiGraph: use-def paths and DOT."""
from __future__ import annotations

import networkx as nx

from uaii.ir.core import Graph, Value
from uaii.ir.text import name_values, show_attr


def view(graph: Graph) -> nx.DiGraph:
    """Nodes are value names (attributes: kind, label); an edge goes from an operand to each result that uses it."""
    names = name_values(graph)
    net = nx.DiGraph(name=graph.name)
    for i in graph.inputs:
        net.add_node(names[i], kind="input", label=f"{names[i]}\n{i.type}")
    for w in graph.weights.values():
        net.add_node(names[w], kind="weight", label=f"{names[w]}\n{w.type}")
    for op in graph.ops:
        attrs = ", ".join(f"{k}={show_attr(v)}" for k, v in op.attrs.items() if v != op.defaults[k])
        for r in op.results:
            label = f"{op.name}\n{names[r]} {r.type}" + (f"\n{attrs}" if attrs else "")
            net.add_node(names[r], kind=op.name, label=label)
            for v in op.operands:
                net.add_edge(names[v], names[r])
    for n, out in enumerate(graph.outputs):
        label = graph.output_names[n] if graph.output_names else f"out{n}"
        net.add_node(f"return {label}", kind="output", label=label)
        net.add_edge(names[out], f"return {label}")
    return net


def path(graph: Graph, source: Value, target: Value) -> list[str]:
    """The shortest chain of value names along which `source` reaches `target`; empty when it does not."""
    names, net = name_values(graph), view(graph)
    if not nx.has_path(net, names[source], names[target]):
        return []
    return list(nx.shortest_path(net, names[source], names[target]))


def dot(graph: Graph) -> str:
    """Graphviz text: boxes for ops, ellipses for weights and inputs."""
    out = [f'digraph "{graph.name}" {{', "  rankdir=TB; node [fontname=monospace, fontsize=10];"]
    net = view(graph)
    for name, data in net.nodes(data=True):
        shape = {"weight": "ellipse", "input": "ellipse", "output": "doublecircle"}.get(data["kind"], "box")
        label = data["label"].replace('"', r"\"").replace("\n", r"\n")
        out.append(f'  "{name}" [shape={shape}, label="{label}"];')
    out += [f'  "{a}" -> "{b}";' for a, b in net.edges]
    return "\n".join(out + ["}"]) + "\n"
