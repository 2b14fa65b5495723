"""gpt-oss as published: MXFP4 experts packed and exact, what sinks and clamps do, and every form of it that is refused."""
from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import parity
import pytest
from click.testing import CliRunner
from family_cases.gpt_oss import GGUF, MXFP4, PACKED, PLAIN, SHORT, WHOLE
from gguf_twin import Twin
from random_blocks import values as block_values
from refusals import refused, refused_config, refused_tensors
from tiny_models import Arrays, Case, write_folder

from uaii.backends import recipes, reference
from uaii.backends.ort.session import Session
from uaii.cli.compile import main as compile_command
from uaii.cli.explain import main as explain_command
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


def unpacked(tensors: Arrays) -> Arrays:
    """The folder's tensors with its experts as the floats they mean, by arithmetic of its own."""
    fp4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
    out = {n: x for n, x in tensors.items() if not n.endswith(("_blocks", "_scales"))}
    for name in (n for n in tensors if n.endswith("_blocks")):
        codes, exponents = tensors[name], tensors[name.replace("_blocks", "_scales")].astype(int)
        pairs = np.stack([fp4[codes & 15], fp4[codes >> 4]], -1).reshape(*codes.shape[:-1], 32)
        values = np.ldexp(pairs, exponents[..., None] - 127).reshape(*codes.shape[:2], -1)
        out[name.removesuffix("_blocks")] = np.ascontiguousarray(values.swapaxes(1, 2))
    return out


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


@pytest.mark.parametrize("weights", ["auto", "f32"])
def test_an_exponent_that_is_no_number_is_refused_by_name(weights: str, tmp_path: Path) -> None:
    tensors = PACKED.tensors()
    tensors[SCALES][2, 5, 1] = 255
    error = refused_tensors(tmp_path, PACKED, tensors, weights=weights)
    assert (error.code, error.exit_code) == ("B601", 4)
    assert BLOCKS in error.says and SCALES in error.says


# --- refused

def _without(*names: str) -> Arrays:
    return {n: x for n, x in PACKED.tensors().items() if n not in names}


@pytest.mark.parametrize("name", [BLOCKS, SCALES, "model.layers.2.self_attn.sinks", "model.layers.0.mlp.router.bias",
                                  EXPERTS.format(3) + "gate_up_proj_bias", EXPERTS.format(3) + "down_proj_bias"])
def test_a_tensor_that_is_missing_is_named(name: str, tmp_path: Path) -> None:
    error = refused_tensors(tmp_path, PACKED, _without(name))
    lost = f"{EXPERTS.format(1)}down_proj" if name == BLOCKS else name
    assert (error.code, error.exit_code, lost in error.says) == ("T201", 4, True)


@pytest.mark.parametrize(("name", "cut"), [
    (BLOCKS, np.s_[..., :8]), (BLOCKS, np.s_[:, :, :2]), (SCALES, np.s_[:, :, :2]), (SCALES, np.s_[:3]), (BLOCKS, np.s_[:, :-1]),
    ("model.layers.1.self_attn.sinks", np.s_[:3])])
def test_odd_shapes_are_refused(name: str, cut: Any, tmp_path: Path) -> None:
    tensors = PACKED.tensors()
    tensors[name] = np.ascontiguousarray(tensors[name][cut])
    error = refused_tensors(tmp_path, PACKED, tensors)
    assert (error.code, error.exit_code, f"tensor {name} is" in error.says) == ("T203", 4, True)


def test_rows_that_are_no_whole_number_of_blocks_are_refused(tmp_path: Path) -> None:
    """80 values in three blocks of 32."""
    case = PACKED.set("odd", intermediate_size=80)
    rows = {n: (*s[:2], 3, *s[3:]) for n, s in case.shapes(case.config).items() if "down_proj_" in n and "bias" not in n}
    odd = case.but(shapes=lambda c: PACKED.shapes(c) | rows)
    error = refused(write_folder(tmp_path / "model", odd))
    assert (error.code, "has rows of 96 values, gpt_oss needs 80 here" in error.says) == ("T203", True)


@pytest.mark.parametrize("count", [2, 8])
def test_another_number_of_experts_is_refused(count: int, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", PACKED)
    assert refused_config(folder, {**PACKED.config, "num_local_experts": count}).code == "T203"


def test_codes_that_are_not_bytes_are_refused(tmp_path: Path) -> None:
    class Wide(type(PACKED)):  # type: ignore[misc]
        def stored_as(self, name: str) -> str:
            return "F32" if name == BLOCKS else super().stored_as(name)

    case = Wide(**vars(PACKED))
    error = refused(write_folder(tmp_path / "model", case))
    assert (error.code, f"tensor {BLOCKS} is f32[4,64,3,16], gpt_oss needs u8[4,64,3,16] here" in error.says) == ("T203", True)


def test_a_layer_of_floats_among_packed_ones_is_refused(tmp_path: Path) -> None:
    tensors = PACKED.tensors()
    name = f"{EXPERTS.format(1)}down_proj"
    mixed = {n: x for n, x in tensors.items() if n not in (BLOCKS, SCALES)} | {name: unpacked(tensors)[name]}
    error = refused_tensors(tmp_path, PACKED, mixed)
    assert (error.code, "quantization_config" in error.says, "layer 1 stores floats" in error.says) == ("F103", True, True)


@pytest.mark.parametrize("record", [
    {"quant_method": "mxfp4"}, {**MXFP4, "dequantize": True}, {**MXFP4, "modules_to_not_convert": ["lm_head"]},
    {**MXFP4, "quant_method": "fp8"}, "mxfp4"])
def test_other_words_for_the_quantisation_are_refused(record: object, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", PACKED)
    error = refused_config(folder, {**PACKED.config, "quantization_config": record})
    assert (error.code, error.exit_code) == ("H330", 3)
    assert "Convert to BF16 safetensors or GGUF (Q4_K / IQ4_NL) and retry." in error.says


def test_codes_without_their_declaration_are_refused(tmp_path: Path) -> None:
    error = refused_config(write_folder(tmp_path / "model", PACKED), PLAIN.config)
    assert (error.code, error.says.startswith("mxfp4 convert to BF16/GGUF")) == ("H330", True)


@pytest.mark.parametrize("names", [
    {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, {"architectures": ["GPT2LMHeadModel"]},
    {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}])
def test_under_another_familys_name_it_is_refused(names: dict[str, Any], tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", SHORT)
    assert refused_config(folder, {**SHORT.config, **names}).code in ("F101", "F121")


@pytest.mark.parametrize(("changes", "code"), [
    ({"sliding_window": None}, "F103"), ({"head_dim": None}, "F104"), ({"num_key_value_heads": None}, "F104"),
    ({"hidden_act": "gelu"}, "F103"), ({"swiglu_limit": 0}, "F104"), ({"num_experts_per_tok": 5}, "F107"),
    ({"initial_context_length": 64}, "F103"), ({"experts_per_token": 1}, "F103"), ({"num_experts": 8}, "F108")])
def test_what_cannot_be_meant_is_refused(changes: dict[str, Any], code: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", SHORT)
    assert refused_config(folder, {**SHORT.config, **changes}).code == code


@pytest.mark.parametrize(("key", "value"), [("attention.sliding_window", None), ("attention.sliding_window", 0),
                                            ("rope.freq_base_swa", 5e5), ("feed_forward_length", 48), ("expert_count", None)])
def test_keys_of_a_file_that_are_refused(key: str, value: Any, tmp_path: Path) -> None:
    error = refused(GGUF.write(tmp_path, WHOLE, **{key: value}))
    assert error.code in ("F102", "F103", "F104") and key in error.says


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
    assert facts["rope"][0]["parameters"]["truncate"] is False and json.loads(real.read_text())["quantization_config"] == MXFP4
