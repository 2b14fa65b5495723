"""FP8 weights in blocks: a folder of them is the folder of the values that they mean, bit for bit, and no other form is taken."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import parity
import pytest
from family_cases import deepseek_v3, kimi_k2, llama
from fp8_folder import BLOCK, DECLARED, meaning, quantised, write_fp8
from refusals import refused
from tiny_models import Case, write_folder

from uaii.backends.recipes import E4M3, evaluate
from uaii.compiler import compile_model, through_passes
from uaii.frontend.open import open_checkpoint
from uaii.inspection import inspect

CASES = {"deepseek_v3": deepseek_v3.PLAIN, "kimi_k2": kimi_k2.PLAIN, "llama": llama.SHORT,
         "bf16": deepseek_v3.SHORT.set("bf16", q_lora_rank=None).but(dtype="BF16")}
FIRST = "model.layers.1.mlp.experts.3.up_proj.weight"
CASE = deepseek_v3.SHORT


def test_every_code_has_its_value() -> None:
    for code in range(256):
        assert np.isnan(E4M3[code]) if code & 0x7F == 0x7F else E4M3[code] == np.float32(meaning(code))
    assert (E4M3[0x7E], E4M3[0x01], E4M3[0x38]) == (448, 2.0 ** -9, 1)


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_a_folder_of_codes_is_that_of_their_values(case: Case, tmp_path: Path) -> None:
    stored, means = quantised(case)
    ours = parity.session(write_fp8(tmp_path / "fp8", case, stored), tmp_path / "fp8.out")
    plain = {n: x for n, x in means.items() if n in case.tensors()}
    theirs = parity.session(write_folder(tmp_path / "f32", case.but(dtype="F32"), plain), tmp_path / "f32.out")
    prompt = case.prompts()[-1]
    assert ours.manifest.family == case.config["model_type"]
    np.testing.assert_array_equal(ours.logits(prompt), theirs.logits(prompt))


def test_each_value_is_its_code_times_its_factor(tmp_path: Path) -> None:
    stored, means = quantised(CASE)
    folder = write_fp8(tmp_path, CASE, stored)
    weight = through_passes(folder).graph.weights["1.moe.fc2"]
    got = evaluate(weight.recipe, open_checkpoint(folder))
    for j in range(8):
        np.testing.assert_array_equal(got[j], means[f"model.layers.1.mlp.experts.{j}.down_proj.weight"])


def test_the_record_says_what_became_of_them(tmp_path: Path) -> None:
    said: list[str] = []
    made = compile_model(write_fp8(tmp_path / "model", CASE, quantised(CASE)[0]), tmp_path / "out", note=said.append)
    rows = {row["tensor"]: row for row in made.manifest["tensors"]}
    for name in (FIRST, f"{FIRST}_scale_inv"):
        assert (rows[name]["held"], rows[name]["use"]) == ("dequantised to f32", "1.moe.up")
    assert rows[FIRST]["stored"] == "f8_e4m3[48,64]"
    assert sum("activations stay f32" in text for text in said) == 1
    report = inspect(tmp_path / "model")
    assert (report.ok, report.facts["dtypes"]["F8_E4M3"]) == (True, sum(x.dtype == np.uint8 for x in quantised(CASE)[0].values()))


def test_modules_that_were_not_converted_are_what_they_are(tmp_path: Path) -> None:
    stored, means = quantised(CASE)
    kept = {n: means[n] if "self_attn" in n and n in means else x for n, x in stored.items()
            if not (n.endswith("_scale_inv") and "self_attn" in n)}
    declared = DECLARED | {"modules_to_not_convert": ["self_attn"], "scale_fmt": "ue8m0"}
    ours, all_codes = (parity.session(write_fp8(tmp_path / str(i), CASE, x, quantization_config=declared), tmp_path / f"{i}.out")
                       for i, x in enumerate((kept, stored)))
    np.testing.assert_array_equal(ours.logits(CASE.prompts()[0]), all_codes.logits(CASE.prompts()[0]))


@pytest.mark.parametrize("changes", [
    {"activation_scheme": "static"}, {"fmt": "e5m2"}, {"weight_block_size": None}, {"weight_block_size": [128]},
    {"weight_block_size": [0, 128]}, {"weight_block_size": [128.0, 128]}, {"quant_method": "fbgemm_fp8"}, {"bits": 8}])
def test_another_form_is_refused_by_name(changes: dict[str, Any], tmp_path: Path) -> None:
    folder = write_fp8(tmp_path, CASE, quantised(CASE)[0], quantization_config=DECLARED | changes)
    error = refused(folder)
    assert (error.code, error.exit_code) == ("H330", 3)
    assert error.says.startswith(f"quantized safetensors: {changes.get('quant_method', 'fp8')}. ")


def test_codes_that_nothing_declares_are_refused(tmp_path: Path) -> None:
    folder = write_fp8(tmp_path, CASE, quantised(CASE)[0], quantization_config=None)
    assert (refused(folder).code, [b.code for b in inspect(folder).blockers][:2]) == ("H330", ["H330", "H309"])
    stored = {n: x for n, x in quantised(CASE)[0].items() if not n.endswith("_scale_inv")}
    error = refused(write_fp8(tmp_path / "bare", CASE, stored, quantization_config=None))
    assert (error.code, error.says) == ("H309", "safetensors dtype F8_E4M3 is not loaded. Convert this checkpoint to BF16.")


@pytest.mark.parametrize("code", [0x7F, 0xFF])
def test_a_code_that_is_no_number_is_refused(code: int, tmp_path: Path) -> None:
    stored, _ = quantised(CASE)
    stored[FIRST][47, 63] = code
    error = refused(write_fp8(tmp_path, CASE, stored))
    assert (error.code, FIRST in error.says) == ("B601", True)


@pytest.mark.parametrize("factor", [np.nan, np.inf, 3e38])
def test_a_factor_that_is_no_number_is_refused(factor: float, tmp_path: Path) -> None:
    stored, _ = quantised(CASE)
    stored[f"{FIRST}_scale_inv"][-1, -1] = factor
    assert refused(write_fp8(tmp_path, CASE, stored)).code == "B601"


def test_factors_must_be_there_and_fit(tmp_path: Path) -> None:
    stored, _ = quantised(CASE)
    lost = {n: x for n, x in stored.items() if n != f"{FIRST}_scale_inv"}
    error = refused(write_fp8(tmp_path / "lost", CASE, lost))
    assert (error.code, f"{FIRST}_scale_inv" in error.says) == ("T201", True)
    for name, wrong in (("short", stored[f"{FIRST}_scale_inv"][:2]), ("codes", np.zeros((3, 3), np.uint8))):
        error = refused(write_fp8(tmp_path / name, CASE, stored | {f"{FIRST}_scale_inv": wrong}))
        assert (error.code, f"{FIRST}_scale_inv" in error.says) == ("T203", True)


def test_factors_without_codes_are_strangers(tmp_path: Path) -> None:
    stored, means = quantised(CASE)
    error = refused(write_fp8(tmp_path, CASE, stored | {FIRST: means[FIRST]}))
    assert (error.code, f"{FIRST}_scale_inv" in error.says) == ("T202", True)


def test_another_block_means_other_values(tmp_path: Path) -> None:
    """The control: with the block's sides exchanged the shapes of some factors fit no more."""
    stored, _ = quantised(CASE)
    error = refused(write_fp8(tmp_path, CASE, stored, quantization_config=DECLARED | {"weight_block_size": list(BLOCK[::-1])}))
    assert error.code == "T203"


def test_shards_of_codes(tmp_path: Path) -> None:
    stored, _ = quantised(CASE)
    whole = write_fp8(tmp_path / "whole", CASE, stored)
    split = tmp_path / "split"
    names = list(stored)
    for i, part in enumerate((names[::2], names[1::2])):
        write_fp8(split / f"{i}", CASE, {n: stored[n] for n in part})
        (split / f"{i}" / "model.safetensors").rename(split / f"model-{i + 1:05}-of-00002.safetensors")
        (split / f"{i}" / "config.json").rename(split / "config.json")
        (split / f"{i}").rmdir()
    placed = {n: f"model-{i % 2 + 1:05}-of-00002.safetensors" for i, n in enumerate(names)}
    (split / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))
    a, b = (parity.session(p, tmp_path / f"{p.name}.out").logits(CASE.prompts()[0]) for p in (whole, split))
    np.testing.assert_array_equal(a, b)
