"""gpt-oss as published: MXFP4 experts packed and exact, what sinks and clamps do, and every form of it that is refused."""
from __future__ import annotations

import json
import re
from pathlib import Path

import gguf
import numpy as np
import parity
import pytest
from click.testing import CliRunner
from family_cases.gpt_oss import GGUF, MXFP4, PACKED, PLAIN, SHORT, WHOLE, unpacked
from gguf_twin import Twin
from random_blocks import values as block_values
from tiny_models import Arrays, Case, write_folder

from uaii.backends import recipes, reference
from uaii.backends.ort.session import Session
from uaii.cli.compile import main as compile_command
from uaii.cli.explain import main as explain_command
from uaii.cli.inspect import lines
from uaii.compiler import begin, compile_model, rewrite, through_passes
from uaii.frontend.open import open_checkpoint
from uaii.inspection import inspect
from uaii.ir.ops import Attention, ExpertKernel, Gqa, MixtureOfExperts
from uaii.ir.recipe import make

SAME = 1e-6    # of the range: the same f32 values in the same graph
EXACT = 1e-4   # of the range: the same values, added in another order
NOISE = 0.05   # what rounding activations to 8 bits changes, see noise(): 0.033 in a folder, 0.037 in a file (llama.cpp: 0.036)
EXPERTS = "model.layers.{}.mlp.experts."
BLOCKS, SCALES = EXPERTS.format(1) + "down_proj_blocks", EXPERTS.format(1) + "down_proj_scales"


def packed_file(tmp_path: Path, case: Case = WHOLE) -> tuple[Path, Path]:
    """A GGUF with MXFP4 experts, and the folder of the floats they mean."""
    tensors: Arrays = GGUF.tensors(case)
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", GGUF.arch)
    for key, value in GGUF.keys(case, {}).items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
        add(key if key.startswith("tokenizer.") else f"{GGUF.arch}.{key}", value)
    meant = {}
    for name, x in tensors.items():
        if "_exps.weight" not in name:
            writer.add_tensor(name, x)
            continue
        raw = gguf.quantize(x, gguf.GGMLQuantizationType.MXFP4)
        writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType.MXFP4)
        meant[name] = block_values(raw.reshape(-1, raw.shape[-1]), "mxfp4").reshape(x.shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / "model.gguf", Twin.write(GGUF, tmp_path / "meant", case, tensors | meant)


def logits(checkpoint: Path, out: Path, weights: str = "f32") -> np.ndarray:
    compile_model(checkpoint, out, weights=weights)
    return Session.open(out, threads=1).logits(PLAIN.prompts()[-1])


def noise(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Of the middle row, the rms of the difference over the logits' deviation. Few rows have a token for which rounding changes
    the choice of an expert, which moves them by much more."""
    return float(np.median(np.sqrt(((ours - theirs) ** 2).mean(-1))) / theirs.std())


def meant_by_the_packed_graph(checkpoint: Path) -> np.ndarray:
    """What the packed artifact's graph means: no kernel rounds activations here."""
    done, ids = through_passes(checkpoint), PLAIN.prompts()[-1]
    feeds = {"input_ids": np.array([ids]), "attention_mask": np.ones((1, len(ids)), np.int64)}
    for v in done.graph.inputs:
        if v.name.startswith("past"):
            feeds[v.name] = np.zeros([{"B": 1, "P": 0}.get(str(d), d) for d in v.type.shape], np.float32)
    return np.asarray(reference.evaluate(done.graph, feeds, done.checkpoint)[0][0])


# --- MXFP4

@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_f32_weights_of_a_packed_folder_are_those_of_its_conversion(dtype: str, tmp_path: Path) -> None:
    case = PACKED.but(dtype=dtype)
    theirs = write_folder(tmp_path / "theirs", PLAIN.but(dtype=dtype), unpacked(case.tensors()))
    ours = write_folder(tmp_path / "ours", case)
    assert parity.difference(logits(ours, tmp_path / "a"), logits(theirs, tmp_path / "b")) <= SAME


def test_packed_experts_differ_from_the_conversion_by_the_rounding_of_activations(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", PACKED.but(dtype="BF16"))
    case = PLAIN.but(dtype="BF16")
    exact = logits(write_folder(tmp_path / "floats", case, unpacked(PACKED.but(dtype="BF16").tensors())), tmp_path / "exact")
    assert parity.difference(meant_by_the_packed_graph(folder), exact) <= EXACT
    assert EXACT < noise(logits(folder, tmp_path / "packed", "auto"), exact) <= NOISE


def test_a_packed_file_computes_what_its_blocks_mean(tmp_path: Path) -> None:
    file, meant = packed_file(tmp_path)
    exact = logits(meant, tmp_path / "meant.out")
    assert parity.difference(logits(file, tmp_path / "f32"), exact) <= SAME
    assert parity.difference(meant_by_the_packed_graph(file), exact) <= EXACT
    assert EXACT < noise(logits(file, tmp_path / "auto", "auto"), exact) <= NOISE


def test_the_record_says_how_each_tensor_of_the_experts_is_held(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", PACKED)
    made = compile_model(folder, tmp_path / "auto")
    rows = {r["tensor"]: r for r in made.manifest["tensors"]}
    for name in (n for n in rows if n.endswith(("_blocks", "_scales"))):
        assert (rows[name]["held"], rows[name]["packing"]) == ("packed", "mxfp4 -> 8 bit")
    router = rows["model.layers.0.mlp.router.weight"]
    assert (router["held"], router["packing"]) == ("float", None)
    assert made.summary["experts"] == {"mxfp4 -> 8 bit": 16} and made.summary["packed"] == 16
    assert [inspect(folder, weights=w).facts["experts_held"] for w in ("auto", "f32")] == ["mxfp4 -> 8 bit", "f32"]
    count = sum(x.size for x in unpacked(PACKED.tensors()).values())
    assert made.summary["parameters"] == inspect(folder).facts["parameters"] == count
    table = CliRunner().invoke(explain_command, [str(tmp_path / "auto"), "--account"]).stdout
    assert re.search(rf"^{re.escape(SCALES)} .+ packed +mxfp4 -> 8 bit +yes ", table, re.M)
    exact = compile_model(folder, tmp_path / "f32", weights="f32")
    assert exact.summary["experts"] == {"dequantised to f32": 16}
    said = CliRunner().invoke(compile_command, [str(folder), "-o", str(tmp_path / "again")])
    assert "experts   16 tensors mxfp4 -> 8 bit\n" in said.stderr
    said = CliRunner().invoke(compile_command, [str(write_folder(tmp_path / "plain", PLAIN)), "-o", str(tmp_path / "floats")])
    assert "experts   8 tensors float\n" in said.stderr


def test_a_mixture_and_its_attention_are_one_node_each(tmp_path: Path) -> None:
    done = begin(open_checkpoint(write_folder(tmp_path / "model", PACKED)), target="cpu", weights="auto", context=None, accept=())
    model = done.graph
    layers = PLAIN.config["num_hidden_layers"]
    assert [sum(isinstance(op, kind) for op in model.ops) for kind in (MixtureOfExperts, Attention)] == [layers, layers]
    rewrite(done)
    kernels = [op for op in done.graph.ops if isinstance(op, ExpertKernel)]
    assert [(op.bits, op.block, op.alpha, op.beta, op.limit) for op in kernels] == [(8, 32, 1.702, 1.0, 7.0)] * layers
    assert all(op.sinks is not None for op in done.graph.ops if isinstance(op, Gqa))


def test_each_value_of_a_folder_is_a_value_of_its_blocks(tmp_path: Path) -> None:
    """Every code under every exponent that f32 holds, through the reader and the recipe of gate, up and down."""
    tensors = PACKED.tensors()
    codes, exponents = tensors[BLOCKS], tensors[SCALES]
    codes[:] = np.arange(codes.size).reshape(codes.shape)
    exponents[:] = np.resize(np.arange(253), exponents.shape)
    ckpt = open_checkpoint(write_folder(tmp_path / "model", PACKED, tensors))
    graph = begin(ckpt, target="cpu", weights="f32", context=None, accept=()).graph
    for ours, theirs, rows in (("down", "down", np.s_[:]), ("gate", "gate_up", np.s_[0::2]), ("up", "gate_up", np.s_[1::2])):
        recipe = graph.weights[f"1.moe.{ours}"].recipe
        want = unpacked(tensors)[f"{EXPERTS.format(1)}{theirs}_proj"].swapaxes(1, 2)[:, rows]
        np.testing.assert_array_equal(recipes.evaluate(make("dequant", recipe), ckpt), want)


# --- sinks

def test_a_sink_that_takes_everything_leaves_the_layer_without_attention(tmp_path: Path) -> None:
    """Large sinks and a zero output of attention are one thing, small ones and none are."""
    def run(name: str, sink: float, silent: bool = False) -> np.ndarray:
        tensors = {n: np.full_like(x, sink) if n.endswith("sinks") else x for n, x in SHORT.tensors().items()}
        tensors |= {n: np.zeros_like(x) for n, x in tensors.items() if silent and n.endswith("o_proj.weight")}
        return logits(write_folder(tmp_path / name, SHORT, tensors), tmp_path / f"{name}.out")

    assert parity.difference(run("loud", 1e4), run("silent", 0.0, silent=True)) <= SAME
    assert parity.difference(run("faint", -1e4), run("fainter", -2e4)) <= SAME
    assert parity.difference(run("own", 0.0), run("none", -1e4)) > parity.TOLERANCE


# --- real configurations

@pytest.mark.parametrize(("size", "layers", "experts"), [("20b", 24, 32), ("120b", 36, 128)])
def test_inspect_tells_what_a_real_configuration_is(size: str, layers: int, experts: int, tmp_path: Path) -> None:
    real = Path(__file__).parent.parent / "data" / "configs" / f"gpt-oss-{size}.json"
    (tmp_path / "config.json").write_text(real.read_text())
    report = inspect(tmp_path)
    assert (report.family, report.gates["architecture"].state, [b.code for b in report.blockers]) == ("gpt_oss", "ok", ["H320"])
    facts = report.facts
    assert (facts["layers"], facts["moe"], facts["sliding_window"]) == (
        layers, {"experts": experts, "experts_used": 4}, {"128": layers // 2})
    assert (facts["experts_held"], "experts_held=mxfp4 -> 8 bit" in lines(report)) == ("mxfp4 -> 8 bit", True)
    assert facts["rope"][0]["parameters"]["truncate"] is False and json.loads(real.read_text())["quantization_config"] == MXFP4
