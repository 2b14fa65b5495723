"""--weights int8 and int4: a model in floats becomes the artifact of the GGUF that rounds it alike, and says what that lost."""
from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from click.testing import CliRunner
from family_cases import deepseek_v2, falcon, gemma3, gpt2, gpt_oss, granitemoe, llama, mixtral, qwen3_moe
from fp8_folder import quantised as fp8_tensors
from fp8_folder import write_fp8
from gguf_twin import Twin
from llamacpp_files import LLAMA_TWIN
from quantised_gguf import stored, write_stored
from tiny_models import Case, write_folder

from uaii.backends.ort.session import Session
from uaii.cli.compile import main as compile_command
from uaii.cli.explain import main as explain_command
from uaii.compiler import Artifact, compile_model
from uaii.inspection import inspect
from uaii.ir.diag import Malformed, Unsupported, Usage
from uaii.ir.types import BLOCKS

WIDE = llama.PLAIN.set("wide-rows", hidden_size=256, intermediate_size=256, head_dim=64).but(lengths=(40,))
TIED = WIDE.set("tied", tie_word_embeddings=True)
EXPERTS = mixtral.PLAIN.set("wide", hidden_size=256, intermediate_size=256, head_dim=64).but(lengths=(40,))
# What the file of each width holds: tables and the head in 8 bits, the router in F32.
KINDS: dict[str, Mapping[str, str]] = {
    "int8": {"ffn_gate_inp": "F32", "weight": "Q8_0"},
    "int4": {"ffn_gate_inp": "F32", "token_embd": "Q8_0", "attn_output": "Q4_0", "output.": "Q8_0", "weight": "Q4_0"}}
NEAR = {"int8": 0.07, "int4": 0.6}  # rms over the logits' std, of tiny random models: activations are rounded too
CALM = 0.4  # of a case's own spread, at which attention is all but a choice of one token
SMALLER = {"int8": 0.32, "int4": 0.21}  # of the bytes in f32; scales, norms and, of 4 bits, the table are the rest
BITS = {"int8": ("q8_0", 8), "int4": ("q4_0", 4)}


def run(artifact: Path, case: Case) -> np.ndarray:
    return Session.open(artifact, threads=1).logits(case.prompts()[-1])


def rows(made: Artifact) -> dict[str, dict[str, Any]]:
    return {row["tensor"]: row for row in made.manifest["tensors"]}


@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize(("twin", "case"), [(LLAMA_TWIN, WIDE), (LLAMA_TWIN, TIED), (mixtral.GGUF, EXPERTS)],
                         ids=["llama", "tied", "mixtral"])
def test_a_folder_is_the_gguf_that_rounds_it_alike(twin: Twin, case: Case, weights: str, tmp_path: Path) -> None:
    """Logits bit for bit: the same blocks under the same kernels. A file in F32 gives them as well."""
    ours = compile_model(write_folder(tmp_path / "model", case), tmp_path / "folder.out", weights=weights)
    file = write_stored(tmp_path / "model.gguf", case, stored(case, KINDS[weights], twin=twin), twin)
    theirs = compile_model(file, tmp_path / "gguf.out")
    logits = run(ours.folder, case)
    np.testing.assert_array_equal(logits, run(theirs.folder, case))
    assert ours.summary["bytes_out"] == theirs.summary["bytes_out"]
    assert ours.summary["packed"] == theirs.summary["quantised"] == 0 and ours.summary["quantised"] >= theirs.summary["packed"]
    floats = twin.write(tmp_path, case)
    compile_model(floats, tmp_path / "floats.out", weights=weights)
    np.testing.assert_array_equal(logits, run(tmp_path / "floats.out", case))
    data = (ours.folder / "model.onnx.data").read_bytes()
    again = compile_model(tmp_path / "model", tmp_path / "again.out", weights=weights)
    assert (again.folder / "model.onnx.data").read_bytes() == data and again.manifest["tensors"] == ours.manifest["tensors"]


@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize("case", [llama.PLAIN, falcon.PLAIN, gpt2.PLAIN, granitemoe.PLAIN, qwen3_moe.PLAIN, gemma3.PLAIN,
                                  deepseek_v2.PLAIN, gpt_oss.PLAIN], ids=lambda c: c.config["model_type"])
def test_every_kind_of_family_runs_near_its_floats(case: Case, weights: str, tmp_path: Path) -> None:
    calm = {n: x * np.float32(CALM) if x.ndim > 1 else x for n, x in case.tensors().items()}
    folder = write_folder(tmp_path / "model", case.but(dtype="BF16"), calm)
    exact = compile_model(folder, tmp_path / "f32", weights="f32")
    made = compile_model(folder, tmp_path / "out", weights=weights)
    theirs = run(exact.folder, case)
    off = np.sqrt(((run(made.folder, case) - theirs) ** 2).mean(-1)) / theirs.std()
    assert float(np.median(off)) <= NEAR[weights]
    kept = {e["says"] for e in made.manifest["journal"] if e["pass_"] == "quantise-weights" and not e["applied"]}
    if not any("no whole number of blocks" in says for says in kept):
        assert made.summary["bytes_out"] <= SMALLER[weights] * exact.summary["bytes_out"]
    floats = {n for n, row in rows(made).items() if row["held"] == "float" and case.tensors()[n].ndim > 1}
    assert floats == set() or kept
    assert exact.summary["quantised"] == 0 and exact.summary["worst_error"] is None


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_the_record_says_what_each_tensor_lost(weights: str, tmp_path: Path) -> None:
    made = compile_model(write_folder(tmp_path / "model", WIDE), tmp_path / "out", weights=weights)
    for name, x in WIDE.tensors().items():
        row, (kind, bits) = rows(made)[name], BITS["int8" if "embed" in name or "lm_head" in name else weights]
        if x.ndim == 1:
            assert (row["held"], row["exact"], row["error"]) == ("float", True, None)
            continue
        assert (row["held"], row["packing"], row["exact"]) == ("quantised", f"{kind} -> {bits} bit", False)
        code = gguf.GGMLQuantizationType[kind.upper()]
        off, size = gguf.dequantize(gguf.quantize(x, code), code) - x, np.sqrt(np.mean(x.astype(np.float64) ** 2))
        assert row["error"]["rms"] == pytest.approx(np.sqrt(np.mean(off.astype(np.float64) ** 2)) / size, rel=6e-3)
        assert row["error"]["largest"] == pytest.approx(np.abs(off).max() / size, rel=6e-3)
    worst = max((r for r in rows(made).values() if r["error"]), key=lambda r: r["error"]["rms"])
    assert made.summary["worst_error"] == {"tensor": worst["tensor"], **worst["error"]}
    assert made.summary["quantised"] == sum(x.ndim > 1 for x in WIDE.tensors().values())
    assert made.manifest["options"]["weights"] == weights


def test_blocks_of_a_file_stay_exactly_as_they_are(tmp_path: Path) -> None:
    """Beside Q4_1, Q8_0 and Q6_K, tensors in F16, BF16 and F32 are rounded as a folder's are."""
    kinds = {"token_embd": "Q4_1", "attn_q": "F16", "attn_k": "BF16", "attn_v": "Q8_0", "attn_output": "Q6_K", "output.": "F32",
             "ffn_down": "F16", "weight": "Q4_1"}
    tensors = stored(WIDE, kinds)
    file = write_stored(tmp_path / "model.gguf", WIDE, tensors)
    made, auto = (compile_model(file, tmp_path / w, weights=w) for w in ("int4", "auto"))
    before = rows(auto)
    for name, row in rows(made).items():
        kind, x = tensors[name]
        in_blocks = kind.lower() in BLOCKS
        assert row["held"] == ("packed" if in_blocks else "quantised" if x.ndim > 1 else "float"), name
        assert row["exact"] == (in_blocks or x.ndim == 1) and (row["error"] is None) == row["exact"]
        if in_blocks:
            assert row["packing"] == before[name]["packing"]
    packings = {n: r["packing"] for n, r in rows(made).items() if r["held"] == "quantised"}
    assert {n: p for n, p in packings.items() if "blk.0." in n or "blk" not in n} == {
        "blk.0.attn_q.weight": "q4_0 -> 4 bit", "blk.0.attn_k.weight": "q4_0 -> 4 bit", "blk.0.ffn_down.weight": "q4_0 -> 4 bit",
        "output.weight": "q8_0 -> 8 bit"}
    kept = {e["says"] for e in made.manifest["journal"] if e["pass_"] == "quantise-weights" and not e["applied"]}
    assert kept == {f"stored as {k} blocks, which stay exactly as they are" for k in ("q4_1", "q8_0", "q6_k")}
    blocks = write_stored(tmp_path / "blocks.gguf", WIDE, stored(WIDE, {"weight": "Q4_1"}))
    whole = compile_model(blocks, tmp_path / "whole", weights="int8")
    assert whole.summary["quantised"] == 0 and whole.summary["worst_error"] is None


def test_q_k_v_that_are_rounded_are_one_product_whatever_they_were(tmp_path: Path) -> None:
    kinds = {"attn_q": "F16", "attn_k": "BF16", "attn_v": "Q8_0", "weight": "F32"}
    made = compile_model(write_stored(tmp_path / "model.gguf", WIDE, stored(WIDE, kinds)), tmp_path / "out", weights="int8")
    assert {"0.attn.qkv.quants", "0.ffn.gate_up.quants"} <= set(made.manifest["weights"])


def test_experts_in_mxfp4_stay_exact_in_a_folder(tmp_path: Path) -> None:
    made = compile_model(write_folder(tmp_path / "model", gpt_oss.PACKED), tmp_path / "out", weights="int8")
    for name, row in rows(made).items():
        if name.endswith(("_blocks", "_scales")):
            assert (row["held"], row["packing"], row["exact"]) == ("packed", "mxfp4 -> 8 bit", True)
        elif name.endswith(("q_proj.weight", "lm_head.weight")):
            assert (row["held"], row["exact"]) == ("quantised", False)
        elif name.endswith("router.weight"):
            assert (row["held"], row["exact"]) == ("float", True)


def test_fp8_is_rounded_by_the_values_of_its_codes(tmp_path: Path) -> None:
    codes, means = fp8_tensors(llama.SHORT)
    made = compile_model(write_fp8(tmp_path / "fp8", llama.SHORT, codes), tmp_path / "a", weights="int8")
    plain = {n: x for n, x in means.items() if n in llama.SHORT.tensors()}
    compile_model(write_folder(tmp_path / "f32", llama.SHORT.but(dtype="F32"), plain), tmp_path / "b", weights="int8")
    np.testing.assert_array_equal(run(tmp_path / "a", llama.SHORT), run(tmp_path / "b", llama.SHORT))
    assert rows(made)["model.layers.0.mlp.up_proj.weight"]["held"] == "quantised"


def test_what_latent_attention_folds_stays_f32(tmp_path: Path) -> None:
    made = compile_model(write_folder(tmp_path / "model", deepseek_v2.PLAIN), tmp_path / "out", weights="int4")
    row = rows(made)["model.layers.1.self_attn.kv_b_proj.weight"]
    assert (row["held"], row["exact"]) == ("float", True)


@pytest.mark.parametrize(("value", "code", "kind"), [(np.nan, "B601", Malformed), (np.inf, "B601", Malformed),
                                                     (1e30, "B602", Unsupported)])
def test_what_cannot_be_rounded_is_refused_and_nothing_written(value: float, code: str, kind: type[Exception],
                                                               tmp_path: Path) -> None:
    tensors = llama.SHORT.tensors()
    name = "model.layers.1.mlp.down_proj.weight"
    tensors[name][3, 5] = value
    with pytest.raises(kind) as caught:
        compile_model(write_folder(tmp_path / "model", llama.SHORT, tensors), tmp_path / "out", weights="int8")
    assert getattr(caught.value, "code", "") == code and name in str(caught.value) and not (tmp_path / "out").exists()


def test_the_commands_say_it(tmp_path: Path) -> None:
    folder, out = write_folder(tmp_path / "model", WIDE), tmp_path / "out"
    said = CliRunner().invoke(compile_command, [str(folder), "-o", str(out), "--weights", "int4"]).stderr
    assert "quantised, " in said and " % of a tensor's values (rms), in model.layers." in said
    one = "model.layers.0.mlp.up_proj.weight"
    loss = next(r for r in json.loads((out / "uaii.json").read_text())["tensors"] if r["tensor"] == one)["error"]
    text = f"{100 * loss['rms']:.3g} % rms, {100 * loss['largest']:.3g} % largest"
    assert text in CliRunner().invoke(explain_command, [str(out), one]).output
    table = CliRunner().invoke(explain_command, [str(out), "--account"]).output
    assert text in table and "q4_0 -> 4 bit" in table
    page = tmp_path / "page.html"
    CliRunner().invoke(explain_command, [str(out), "--html", str(page)])
    assert text in page.read_text() and "worst_error" in CliRunner().invoke(explain_command, [str(out)]).output
    planned = CliRunner().invoke(explain_command, [str(folder), "--account", "--weights", "int4"]).output
    assert "measured by a compile" in planned and "rms," not in planned
    assert "stay exactly" not in CliRunner().invoke(explain_command, [str(out), "--why-not", "quantise-weights"]).output


def test_inspect_plans_the_size_of_either(tmp_path: Path) -> None:
    folder, bare = write_folder(tmp_path / "model", WIDE), tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_bytes((folder / "config.json").read_bytes())
    for weights in ("int8", "int4"):
        made = compile_model(folder, tmp_path / weights, weights=weights)
        for path in (folder, bare):
            planned = inspect(path, weights=weights).facts["artifact_bytes"]
            assert planned <= made.summary["bytes_out"] < planned + 64 * len(made.manifest["weights"])


def test_another_width_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Usage) as caught:
        compile_model(write_folder(tmp_path / "model", llama.SHORT), tmp_path / "out", weights="int3")
    assert caught.value.code == "U020" and "int8, int4" in caught.value.says
