"""What gpt-oss checkpoints are refused for: lost, odd and damaged tensors, other quantisations, names and settings."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from family_cases.gpt_oss import GGUF, MXFP4, PACKED, PLAIN, SHORT, WHOLE, unpacked
from refusals import refused, refused_config, refused_tensors
from tiny_models import Arrays, write_folder

EXPERTS = "model.layers.{}.mlp.experts."
BLOCKS, SCALES = EXPERTS.format(1) + "down_proj_blocks", EXPERTS.format(1) + "down_proj_scales"


@pytest.mark.parametrize("weights", ["auto", "f32"])
def test_an_exponent_that_is_no_number_is_refused_by_name(weights: str, tmp_path: Path) -> None:
    tensors = PACKED.tensors()
    tensors[SCALES][2, 5, 1] = 255
    error = refused_tensors(tmp_path, PACKED, tensors, weights=weights)
    assert (error.code, error.exit_code) == ("B601", 4)
    assert BLOCKS in error.says and SCALES in error.says


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
