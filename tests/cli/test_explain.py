"""`uaii-explain` answers from a checkpoint and from an artifact: what ran, what was read, what declined, whence a node."""
from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import onnx
import pytest
import tiny_llama_for_cli as tiny
from click.testing import CliRunner, Result

from uaii.cli.explain import main
from uaii.cli.table import table
from uaii.compiler import compile_model, through_passes
from uaii.explanation import explain
from uaii.ir.parse import parse
from uaii.ir.text import show

LAYERS, WIDTH, KV, FFN, VOCAB, HEAD = 2, 64, 32, 96, 288, 16


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BF16 folder."""
    return tiny.folder(tmp_path_factory.mktemp("explain") / "model", tiny.CASE.but(dtype="BF16"))


@pytest.fixture(scope="module")
def artifact(model: Path) -> Path:
    """The same, compiled; its source stays where it was."""
    return compile_model(model, model.parent / "artifact").folder


@pytest.fixture
def lone(tmp_path: Path) -> Path:
    """An artifact whose source is gone."""
    out = compile_model(tiny.folder(tmp_path / "model"), tmp_path / "artifact").folder
    tiny.moved(tmp_path / "model", tmp_path / "elsewhere")
    return out


def run(path: Path, *options: str) -> Result:
    return CliRunner().invoke(main, [str(path), *options])


def said(path: Path, *options: str) -> str:
    result = run(path, *options)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def answer(path: Path, *options: str) -> Any:
    return json.loads(said(path, *options, "--format", "json"))


def facts(text: str, name: str) -> list[str]:
    """The values of a node's facts of that name."""
    return [line.removeprefix(name).strip() for line in text.splitlines() if line.startswith(f"{name} ")]


# --- the pipeline

def test_every_pass_is_a_row_that_follows_from_the_row_before(model: Path) -> None:
    steps = answer(model)["pipeline"]
    graphs = through_passes(model, keep=True).snapshots
    assert [s["pass_"] for s in steps] == [name for name, _ in graphs]
    assert [s["ops"] for s in steps] == [len(g.ops) for _, g in graphs]
    assert [s["stage"] for s in steps] == [str(g.stage) for _, g in graphs]
    assert [s["ops_before"] for s in steps[1:]] == [s["ops"] for s in steps[:-1]]


def test_counts_of_a_pass_are_its_own(model: Path) -> None:
    steps = {s["pass_"]: s for s in answer(model)["pipeline"]}
    assert [(steps[p]["applied"], steps[p]["declined"]) for p in ("fold-rope", "fuse-qkv", "fuse-gate-up", "pack-linear")] == [
        (2 * LAYERS, 0), (LAYERS, 0), (LAYERS, 0), (0, 0)]


def test_weight_bytes_of_a_token(model: Path) -> None:
    steps = {s["pass_"]: s["read_per_token"] for s in answer(model)["pipeline"]}
    products = LAYERS * (2 * WIDTH * WIDTH + 2 * KV * WIDTH + 3 * FFN * WIDTH) + VOCAB * WIDTH
    norms = (2 * LAYERS + 1) * WIDTH
    assert steps["lower"] == 2 * (products + norms + WIDTH)  # of the embedding table one row
    assert steps["check-capabilities"] == 4 * (products + norms + WIDTH) + 2 * 4 * HEAD // 2  # and a row of cos and sin


def test_text_is_aligned_and_nothing_is_cut(model: Path) -> None:
    head, *rows = said(model).split("\n\n")[0].splitlines()
    assert head.split() == ["stage", "pass", "applied", "declined", "ops", "read/token", "why"]
    why = head.index("why")
    assert all(row[why - 1] == " " and row[why] != " " for row in rows)
    (row,) = [r for r in rows if " fuse-qkv " in r]
    assert row.endswith("q, k and v read the same input: one product over stacked rows, which the attention kernel takes whole")


def test_summary(model: Path) -> None:
    summary = answer(model)["summary"]
    assert (summary["family"], summary["layers"], summary["vocab_size"], summary["tensors_float"]) == ("llama", LAYERS, VOCAB, 21)
    assert summary["bytes_in"] == sum(2 * x.size for x in tiny.CASE.tensors().values())


def test_an_artifact_tells_the_same_as_its_checkpoint(model: Path, artifact: Path) -> None:
    assert answer(artifact)["pipeline"] == answer(model)["pipeline"]
    assert answer(artifact, "--account") == answer(model, "--account")
    ours, theirs = answer(artifact)["summary"], answer(model)["summary"]
    size = (artifact / "model.onnx.data").stat().st_size
    assert ours | {"bytes_out": 0} == theirs | {"bytes_out": 0}
    assert ours["bytes_out"] == size >= theirs["bytes_out"]


def test_options_are_compile_options(model: Path) -> None:
    path = tiny.gguf_file(model.parent / "g" / "x.gguf")
    assert answer(path, "--context", "32")["summary"]["context_length"] == 32
    assert run(path, "--context", "999").exit_code == 2


def test_a_pipeline_that_ends_in_an_error_is_shown_as_far_as_it_went(tmp_path: Path) -> None:
    result = run(tiny.folder(tmp_path / "model", tiny.CASE.set("narrow", head_dim=12)))
    assert result.exit_code == 3
    assert "error[C401]" in result.stderr and "check-capabilities" not in result.stdout
    assert " share-tied " in result.stdout
    as_json = json.loads(run(tmp_path / "model", "--format", "json").stdout)
    assert (as_json["error"]["code"], as_json["pipeline"][-1]["pass_"]) == ("C401", "share-tied")
    assert "@0.attn.q " in run(tmp_path / "model", "--ir-after", "lower").stdout


def test_what_cannot_be_read_is_the_error_of_compile(tmp_path: Path) -> None:
    result = run(tiny.BAD["rope-kind"](tmp_path / "model"))
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith("error[F111]: unsupported rope_scaling.type=foo")


# --- IR

def test_ir_after_a_pass_is_the_graph(model: Path) -> None:
    graphs = dict(through_passes(model, keep=True).snapshots)
    for name in ("lower", "fuse-qkv", "check-capabilities"):
        text = said(model, "--ir-after", name)
        assert text == show(graphs[name]) == show(parse(text))
    located = said(model, "--ir-after", "lower", "--locs")
    assert located == show(graphs["lower"], locs=True) != show(graphs["lower"])


def test_an_unknown_pass_suggests_its_like(model: Path) -> None:
    for option in ("--ir-after", "--diff", "--why-not"):
        result = run(model, option, "fuse-kqv")
        assert result.exit_code == 2
        assert "error[U040]: no pass fuse-kqv has run here; did you mean fuse-qkv" in result.stderr


def test_diff_is_what_one_pass_did(model: Path) -> None:
    lines = said(model, "--diff", "fold-rope").splitlines()
    assert lines[:2] == ["--- before fold-rope", "+++ after fold-rope"]
    assert sum(x.startswith("-") and "theta=10000.0" in x for x in lines) == 2 * LAYERS
    assert sum(x.startswith("+") and "freqs=@rope.freqs" in x for x in lines) == 2 * LAYERS
    assert said(model, "--diff", "pack-linear") == ""


def test_locs_without_ir_is_a_usage_error(model: Path) -> None:
    assert run(model, "--locs").exit_code == 2


# --- accounts and refusals

def test_every_key_and_tensor_has_its_row(tmp_path: Path) -> None:
    dropped = "model.layers.0.self_attn.rotary_emb.inv_freq"
    path = tiny.folder(tmp_path / "model", tensors=tiny.CASE.tensors() | {dropped: tiny.narrow()[0, :8]}, strange=1)
    got = answer(path, "--account", "--accept-key", "strange")
    rows = {r["key"]: r for r in got["account"]}
    assert sorted(r["key"] for r in got["account"]) == sorted(json.loads((path / "config.json").read_text()))
    assert (rows["strange"]["use"], rows["strange"]["by"]) == ("accepted", "--accept-key")
    assert (rows["torch_dtype"]["use"], rows["rms_norm_eps"]["use"]) == ("inert", "read")
    assert "families/llama.py:" in rows["rms_norm_eps"]["by"]
    tensors = {r["tensor"]: r for r in got["tensors"]}
    assert set(tensors) == {*tiny.CASE.tensors(), dropped}
    assert (tensors[dropped]["use"], tensors[dropped]["held"]) == ("dropped: computed from rope_theta", "unused")
    assert tensors["model.layers.1.self_attn.k_proj.weight"]["initializers"] == ["1.attn.qkv"]
    text = said(path, "--account", "--accept-key", "strange")
    assert "strange " in text and dropped in text


def test_why_not_groups_reasons_with_their_places(tmp_path: Path) -> None:
    path = tiny.mixed_projections(tmp_path / "model")
    (group,) = answer(path, "--why-not", "fuse-qkv")["why_not"]
    assert (group["count"], group["at"]) == (LAYERS, ["layers.0/attend", "layers.1/attend"])
    assert group["says"] == "the weights are stored differently: bf16, f32, f32"
    assert "2  the weights are stored differently: bf16, f32, f32  layers.0/attend, layers.1/attend" in said(
        path, "--why-not", "fuse-qkv")
    assert said(path, "--why-not", "fuse-gate-up") == "declined nowhere\n"


# --- nodes

def test_a_value_is_traced_to_keys_passes_tensors_and_the_family(model: Path) -> None:
    text = said(model, "%0.attn.qkv")
    assert facts(text, "op") == ["linear"]
    passes = [p.split(":")[0] for p in facts(text, "pass")]
    assert passes == ["fold-rope", "lower-attention", "fuse-rope", "fuse-qkv", "widen-weights"]
    assert facts(text, "tensor") == [f"model.layers.0.self_attn.{p}_proj.weight" for p in "qkv"]
    assert facts(text, "reads")[0].startswith("@0.attn.qkv.f32 : f32[128,64] = cast(concat(")
    assert any(f.startswith("frontend/families/llama.py:") and f.endswith("layers.0/attn/q") for f in facts(text, "from"))
    assert facts(text, "after fuse-qkv")[0].startswith("%0.attn.qkv = linear %0.attn_norm, @0.attn.qkv")


def test_attributes_name_the_key_they_came_from(model: Path) -> None:
    node = answer(model, "%0.attn_norm")["node"]
    assert node["attrs"]["eps"] == {"value": "1e-05", "from": ["config.json: rms_norm_eps = 1e-05"]}
    assert node["nodes"] == ["/layers.0/attn_norm/SimplifiedLayerNormalization"]
    earlier = answer(model, "%0.rope")["node"]
    assert earlier["attrs"]["dim"]["from"] == ["config.json: head_dim = absent"]
    assert earlier["gone_after"] == "fuse-rope"


@pytest.mark.parametrize("name", ["0.attn.q", "%0.attn.q"])
def test_a_value_that_a_pass_took_away(name: str, model: Path) -> None:
    node = answer(model, name)["node"]
    assert (node["kind"], node["op"], node["gone_after"]) == ("op", "linear", "fuse-qkv")


def test_weights_tensors_and_inputs_have_answers_too(model: Path) -> None:
    gone = answer(model, "@0.attn.q")["node"]
    assert (gone["kind"], gone["gone_after"]) == ("weight", "fuse-qkv")
    assert gone["tensors"] == ["model.layers.0.self_attn.q_proj.weight"]
    kept = answer(model, "weights/0.attn.qkv.f32")["node"]
    assert kept["name"] == "@0.attn.qkv.f32" and len(kept["read_by"]) == 1
    tensor = answer(model, "model.embed_tokens.weight")["node"]
    assert (tensor["kind"], tensor["use"], tensor["initializers"]) == ("tensor", "embed", ["embed.f32"])
    assert answer(model, "%attention_mask")["node"]["type"] == "i64[B,T]"


def test_every_node_of_the_artifact_is_explained_without_its_source(lone: Path) -> None:
    e = explain(lone)
    nodes = [n.name for n in onnx.load(lone / "model.onnx", load_external_data=False).graph.node]
    assert [n for n in nodes if not n.startswith("/outputs/")] == list(e.record["origins"])
    gqa = said(lone, "/layers.1/attend/GroupQueryAttention")
    assert "scale = 0.25  (config.json: head_dim = absent)" in gqa
    assert [p.split(":")[0] for p in facts(gqa, "pass")] == ["fold-rope", "lower-attention", "fuse-rope", "fuse-qkv"]


def test_an_unknown_node_suggests_names_like_it(model: Path, lone: Path) -> None:
    result = run(model, "%0.attn.qkw")
    assert result.exit_code == 2
    assert "error[U041]: nothing here is called %0.attn.qkw; did you mean %0.attn.qkv" in result.stderr
    assert run(lone, "0.attn.q").exit_code == 2


# --- artifacts and their sources

def test_graphs_of_an_artifact_are_made_again_from_its_source(model: Path, artifact: Path) -> None:
    for options in (("--ir-after", "fuse-qkv"), ("--diff", "fuse-qkv")):
        assert said(artifact, *options) == said(model, *options)
    assert answer(artifact, "@0.attn.q")["node"]["gone_after"] == "fuse-qkv"


def test_graphs_need_the_source_and_the_same_source(lone: Path) -> None:
    result = run(lone, "--ir-after", "lower")
    assert result.exit_code == 2 and "error[U042]" in result.stderr
    tiny.folder(lone.parent / "model", rms_norm_eps=0.5)
    result = run(lone, "--ir-after", "lower")
    assert result.exit_code == 2 and "error[U043]" in result.stderr


def test_compile_options_do_not_go_with_an_artifact(artifact: Path) -> None:
    result = run(artifact, "--weights", "f32")
    assert result.exit_code == 2 and "error[U044]: --weights is of a compile" in result.stderr


def test_a_manifest_without_an_entry_is_named(lone: Path) -> None:
    manifest = json.loads((lone / "uaii.json").read_text())
    del manifest["pipeline"]
    (lone / "uaii.json").write_text(json.dumps(manifest))
    result = run(lone)
    assert result.exit_code == 4 and "error[S603]: uaii.json has no usable entry pipeline" in result.stderr


# --- files

class Tags(HTMLParser):
    """Tags in order, and the text between them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_holds_everything_and_escapes_it(tmp_path: Path) -> None:
    evil = '<script>alert("1")</script>'
    path = tiny.folder(tmp_path / "model", **{evil: evil})
    result = run(path, "--accept-key", evil, "--html", str(tmp_path / "x.html"))
    assert (result.exit_code, result.stdout) == (0, "") and "wrote " in result.stderr
    html = (tmp_path / "x.html").read_text("utf-8")
    page = Tags(html)
    assert "script" not in page.tags and "http" not in html
    assert page.text.count(evil) >= 1
    for text in ("share-tied", "/layers.0/attend/GroupQueryAttention", "model.norm.weight", "rms_norm_eps", "@0.attn.qkv"):
        assert text in page.text


def test_dot_is_the_last_graph(model: Path, tmp_path: Path) -> None:
    said(model, "--dot", str(tmp_path / "x.dot"))
    text = (tmp_path / "x.dot").read_text()
    assert text.startswith("digraph") and "gqa" in text and '"%0.attn.qkv" -> "%0.attend"' in text


def test_a_file_that_cannot_be_written_is_a_usage_error(model: Path, tmp_path: Path) -> None:
    for option in ("--html", "--dot"):
        result = run(model, option, str(tmp_path / "no" / "x"))
        assert result.exit_code == 2 and "error[U045]" in result.stderr


def test_no_tensor_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tiny.folder(tmp_path / "model")

    def refuse(*_: Any) -> Any:
        raise AssertionError("a tensor was read")

    monkeypatch.setattr("uaii.frontend.blob.read", refuse)
    assert "digraph" not in said(path)
    said(path, "--html", str(tmp_path / "x.html"), "--dot", str(tmp_path / "x.dot"))


def test_a_terminal_folds_long_cells_and_loses_none(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    table(("pass", "why"), [("fold-norm-offset", "x" * 100), ("[bold]", "y")])
    out = capsys.readouterr().out
    assert out.count("x") == 100 and max(map(len, out.splitlines()[1:])) <= 60
    assert "fold-norm-offset" in out and "[bold]" in out
