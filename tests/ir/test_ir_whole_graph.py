"""Whole graphs, from the checkpoint to kernels: text, origins and paths at every step."""
from __future__ import annotations

from pathlib import Path

import networkx as nx
import pytest
import uir
from family_cases.llama import PLAIN
from quantised_gguf import MIXED, write_quantised
from tiny_models import write_folder

from uaii.backends.onnx.capabilities import CPU
from uaii.compiler import Compiled, through_passes
from uaii.ir import loc as L
from uaii.ir.core import Graph
from uaii.ir.parse import parse
from uaii.ir.stages import Stage
from uaii.ir.text import show
from uaii.ir.view import dot, path, view
from uaii.passes.pipelines import pipeline

DYNAMIC = PLAIN.set("dynamic", rope_scaling={"type": "dynamic", "factor": 4.0}, max_position_embeddings=32, attention_bias=True)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Compiled]:
    top = tmp_path_factory.mktemp("checkpoints")
    folders = {"folder": write_folder(top / "plain", PLAIN), "dynamic": write_folder(top / "dynamic", DYNAMIC),
               "gguf": write_quantised(top / "mixed.gguf", PLAIN, MIXED)}
    return {name: through_passes(p, keep=True) for name, p in folders.items()}


@pytest.mark.parametrize("name", ["folder", "dynamic", "gguf"])
def test_every_graph_on_the_way_is_read_back(name: str, compiled: dict[str, Compiled]) -> None:
    snapshots = compiled[name].snapshots
    assert [n for n, _ in snapshots] == ["lower", *(p.name for p in pipeline(CPU, 16))]
    assert {g.stage for _, g in snapshots} == set(Stage)
    for _, graph in snapshots:
        graph.verify()
        text = show(graph, locs=True)
        again = parse(text)
        again.verify()
        uir.same_text(show(again, locs=True), text)
        uir.same_text(show(parse(show(graph))), show(graph))
        for a, b in zip(again.ops, graph.ops, strict=True):
            assert a.loc == b.loc and a.attr_locs == b.attr_locs, b.name
        for v, w in zip(again.weights.values(), graph.weights.values(), strict=True):
            assert v.loc == w.loc and v.recipe == w.recipe, w.name


def test_smollm2_is_read_back_at_every_stage(smollm2: Path) -> None:
    done = through_passes(smollm2, keep=True)
    stages: dict[Stage, Graph] = {g.stage: g for _, g in done.snapshots}
    assert set(stages) == set(Stage)
    for graph in stages.values():
        text = show(graph, locs=True)
        uir.same_text(show(parse(text), locs=True), text)
    assert len(stages[Stage.ORT].ops) < 700
    eps = [op.attr_locs["eps"] for op in stages[Stage.ORT].ops if op.name in ("rms_norm", "skip_rms_norm")]
    assert len(eps) == 61
    assert {k.path for at in eps for k in L.leaves(at) if isinstance(k, L.Key)} == {"llama.attention.layer_norm_rms_epsilon"}


@pytest.mark.parametrize(("name", "file", "keys"), [
    ("folder", "config.json", {"skip_rms_norm": ("eps", {"rms_norm_eps"}), "gated": ("act", {"hidden_act"}),
                               "gqa": ("scale", {"head_dim", "hidden_size", "num_attention_heads"})}),
    ("gguf", "mixed.gguf", {"skip_rms_norm": ("eps", {"llama.attention.layer_norm_rms_epsilon"}),
                            "gqa": ("scale", {"llama.attention.key_length"})}),
    ("dynamic", "config.json", {"dynamic_freqs": ("theta", {"rope_theta", "rope_scaling"}),
                                "skip_rms_norm": ("eps", {"rms_norm_eps"})}),
])
def test_kernels_still_say_which_key_they_come_from(name: str, file: str, keys: dict[str, tuple[str, set[str]]],
                                                    compiled: dict[str, Compiled]) -> None:
    for kind, (attr, names) in keys.items():
        found = [op for op in compiled[name].graph.ops if op.name == kind]
        assert found
        for op in found:
            leaves = list(L.leaves(op.attr_locs[attr]))
            assert leaves and all(isinstance(x, L.Key) and x.file == file for x in leaves)
            assert {x.path for x in leaves if isinstance(x, L.Key)} <= names


@pytest.mark.parametrize("name", ["folder", "gguf"])
def test_every_op_stands_somewhere_and_weights_name_their_tensors(name: str, compiled: dict[str, Compiled]) -> None:
    done = compiled[name]
    for op in done.graph.ops:
        assert L.site(op.loc), op.name
        assert any(isinstance(x, L.Site) and x.file.startswith("frontend/families/") for x in L.leaves(op.loc or L.File("")))
    for w in done.graph.weights.values():
        named = {x.name for x in L.leaves(w.loc or L.File("")) if isinstance(x, L.Stored)}
        recipe = w.recipe if w.recipe.op != "view" else done.graph.weights[w.recipe.args[0]].recipe
        assert named == set(recipe.loads), w.name


def test_the_rotation_table_names_the_key_of_its_base(compiled: dict[str, Compiled]) -> None:
    for name, key in (("folder", "rope_theta"), ("gguf", "llama.rope.freq_base")):
        at = compiled[name].graph.weights["rope.cos"].loc
        assert at is not None and key in {k.path for k in L.leaves(at) if isinstance(k, L.Key)}


def test_the_journal_tells_every_pass_and_place(compiled: dict[str, Compiled]) -> None:
    journal = compiled["gguf"].journal
    applied = {e.pass_ for e in journal if e.applied}
    assert applied >= {"fold-rope", "enter-core", "lower-attention", "fuse-rope", "fuse-qkv", "fuse-gate-up", "pack-linear",
                       "pack-embedding", "fuse-skip-norm", "merge-duplicates", "check-capabilities"}
    assert {e.at for e in journal if e.pass_ == "fuse-gate-up"} == {f"layers.{i}/ffn/act" for i in range(4)}
    declined = [e for e in compiled["dynamic"].journal if e.pass_ == "fuse-rope" and not e.applied]
    assert len(declined) == 4 and all(e.says.startswith("the frequencies are computed at run time") for e in declined)


# --- the graph as a network

def test_paths_follow_uses(compiled: dict[str, Compiled]) -> None:
    graph = compiled["folder"].snapshots[0][1]
    logits = next(v for n, v in zip(graph.output_names, graph.outputs, strict=True) if n == "logits")
    chain = path(graph, graph.inputs[0], logits)
    assert chain[0] == "%input_ids" and chain[-1] == "%logits"
    net = view(graph)
    assert all(net.has_edge(a, b) for a, b in zip(chain, chain[1:], strict=False))
    assert path(graph, logits, graph.inputs[0]) == []
    assert path(graph, graph.weights["3.ffn.down"], logits)[0] == "@3.ffn.down"
    assert path(graph, graph.weights["3.ffn.down"], graph.outputs[1]) == []


def test_the_network_is_the_graph(compiled: dict[str, Compiled]) -> None:
    graph = compiled["gguf"].graph
    net = view(graph)
    assert nx.is_directed_acyclic_graph(net)
    kinds = [d["kind"] for _, d in net.nodes(data=True)]
    assert kinds.count("weight") == len(graph.weights) and kinds.count("input") == len(graph.inputs)
    assert kinds.count("output") == len(graph.outputs) and kinds.count("gqa") == 3 * 4
    assert net.number_of_nodes() == len(graph.weights) + len(graph.inputs) + len(graph.outputs) + sum(
        len(op.results) for op in graph.ops)
    assert all(nx.has_path(net, n, "return logits") for n, d in net.nodes(data=True) if d["kind"] == "weight")


def test_dot_has_every_node_and_edge(compiled: dict[str, Compiled]) -> None:
    graph = compiled["folder"].graph
    text = dot(graph)
    net = view(graph)
    assert text.startswith('digraph "llama" {') and text.endswith("}\n")
    assert text.count(" -> ") == net.number_of_edges() and text.count("[shape=") == net.number_of_nodes()
    assert text.count("[shape=ellipse") == len(graph.weights) + len(graph.inputs)
    assert text.count("[shape=doublecircle") == len(graph.outputs)
    quoted = parse('graph @g stage=model dims(B) (%x: f32[B,8]) { @w : f32[8] = "w":f32[8] %n = rms_norm %x, @w {eps=1e-05} : '
                   "f32[B,8] return %n }")
    assert r'label="rms_norm\n%n f32[B,8]\neps=1e-05"' in dot(quoted) and '"return out0"' in dot(quoted)
