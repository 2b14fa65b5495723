"""Nothing goes unread: every stray key and every stray, missing or misshapen tensor is an error of its own."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import parity
import pytest
import raw_safetensors
from family_cases import llama
from refusals import refused, refused_config, refused_tensors
from tiny_models import Arrays, Case, write_config, write_folder, write_weights

from uaii.compiler import compile_model
from uaii.frontend import family
from uaii.frontend.config import POSITIVE, key
from uaii.frontend.families.llama import LLAMA, LlamaConfig
from uaii.ir.diag import Internal

PLAIN = llama.PLAIN
CONVERT = "Convert this checkpoint to BF16."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "model", PLAIN)


# --- keys

@pytest.mark.parametrize(("name", "value"), [("value_residual_scale", 0.5), ("attn_logit_softcapping", 50.0),
                                             ("use_sliding_window", True), ("text_config", {"hidden_size": 64})])
def test_a_key_that_nobody_reads_is_refused(name: str, value: Any, folder: Path) -> None:
    error = refused_config(folder, {**PLAIN.config, name: value})
    assert (error.code, error.exit_code) == ("F101", 3)
    assert error.says == f"llama does not account for 1 config key: {name}"
    assert f"config.json: {name} = {json.dumps(value)}" in str(error)
    assert f"--accept-key {name}" in error.hint


def test_all_stray_keys_are_named_at_once(folder: Path) -> None:
    error = refused_config(folder, {**PLAIN.config, "one": 1, "two": 2})
    assert error.says == "llama does not account for 2 config keys: one, two"


def test_an_accepted_key_is_recorded(folder: Path, tmp_path: Path) -> None:
    write_config(folder, {**PLAIN.config, "value_residual_scale": 0.5})
    made = compile_model(folder, tmp_path / "out", accept=("value_residual_scale",))
    kept = json.loads((tmp_path / "out" / "uaii.json").read_text())
    assert kept["accepted_keys"] == made.manifest["accepted_keys"] == {"value_residual_scale": "0.5"}
    assert {"key": "value_residual_scale", "value": "0.5", "use": "accepted", "by": "--accept-key"} in kept["account"]


@pytest.mark.parametrize("name", ["no_such_key", "hidden_size", "use_cache"])
def test_only_a_stray_key_can_be_accepted(name: str, folder: Path) -> None:
    """Accepting a key that is read would look as if it were ignored."""
    error = refused_config(folder, {**PLAIN.config, "use_cache": True}, accept=(name,))
    assert (error.code, error.exit_code) == ("F105", 4)
    assert name in error.says


def test_every_key_has_a_row_in_the_account(folder: Path, tmp_path: Path) -> None:
    write_config(folder, {**PLAIN.config, "use_cache": True, "pretraining_tp": 1})
    account = compile_model(folder, tmp_path / "out").manifest["account"]
    rows = {row["key"]: row for row in account}
    assert set(rows) == {*PLAIN.config, "use_cache", "pretraining_tp"}
    assert rows["use_cache"]["use"] == "inert"
    assert rows["rms_norm_eps"]["use"] == "read"
    assert "families/llama.py" in rows["rms_norm_eps"]["by"]


class _Idle(LlamaConfig):
    idle: float = key("idle_factor", kind=POSITIVE, default=1.0)


@pytest.mark.parametrize("stated", [{}, {"idle_factor": 2.0}])
def test_a_declared_key_that_the_builder_never_used_is_the_developers_error(
        stated: dict[str, float], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(family, "recognise", lambda checkpoint: LLAMA.but(name="idle", config=_Idle))
    error = refused_config(folder, {**PLAIN.config, **stated})
    assert isinstance(error, Internal)
    assert (error.code, error.says) == ("F106", "idle declares idle and never uses it")


# --- tensors

STRAYS = {
    "model.layers.0.self_attn.q_norm.weight": (16,), "model.layers.3.self_attn.q_proj.bias": (64,),
    "model.layers.1.mlp.down_proj.bias": (64,), "model.layers.4.mlp.up_proj.weight": (96, 64), "lm_head.bias": (199,),
    "model.layers.0.self_attn.kv_a_proj_with_mqa.weight": (24, 64), "model.layers.0.self_attn.sinks": (4,),
}


@pytest.mark.parametrize("name", STRAYS)
def test_a_tensor_that_nobody_uses_is_refused(name: str, tmp_path: Path) -> None:
    error = refused(write_folder(tmp_path / "model", PLAIN.but(extra={name: STRAYS[name]})))
    assert (error.code, error.exit_code) == ("T202", 4)
    assert error.says == f"llama does not use 1 tensor of the checkpoint: {name}"
    assert f"model.safetensors: tensor {name}" in str(error)


def test_fewer_layers_than_stored_is_refused(folder: Path) -> None:
    error = refused_config(folder, {**PLAIN.config, "num_hidden_layers": 3})
    assert (error.code, "9 tensors" in error.says) == ("T202", True)


def test_stored_rotary_tables_are_dropped_with_a_reason(tmp_path: Path) -> None:
    old = PLAIN.but(extra={"model.layers.0.self_attn.rotary_emb.inv_freq": (8,)})
    made = compile_model(write_folder(tmp_path / "model", old), tmp_path / "out")
    row = next(t for t in made.manifest["tensors"] if t["tensor"].endswith("inv_freq"))
    assert (row["held"], row["initializers"]) == ("unused", [])


def _without(*names: str) -> Arrays:
    return {n: x for n, x in PLAIN.tensors().items() if n not in names}


@pytest.mark.parametrize("name", ["lm_head.weight", "model.norm.weight", "model.embed_tokens.weight",
                                  "model.layers.2.self_attn.k_proj.weight", "model.layers.3.input_layernorm.weight"])
def test_a_missing_tensor_is_named(name: str, tmp_path: Path) -> None:
    error = refused_tensors(tmp_path, PLAIN, _without(name))
    assert (error.code, error.exit_code) == ("T201", 4)
    assert error.says == f"llama needs 1 tensor that the checkpoint lacks: {name}"


def test_declared_biases_must_be_there(folder: Path) -> None:
    error = refused_config(folder, {**PLAIN.config, "attention_bias": True})
    assert error.code == "T201"
    assert error.says.startswith("llama needs 16 tensors that the checkpoint lacks: model.layers.0.self_attn.q_proj.bias")


@pytest.mark.parametrize(("name", "shape"), [
    ("model.layers.1.mlp.up_proj.weight", (64, 96)), ("model.layers.1.self_attn.k_proj.weight", (64, 64)),
    ("model.norm.weight", (63,)), ("model.norm.weight", (64, 1)), ("lm_head.weight", (200, 64)),
    ("model.embed_tokens.weight", (198, 64)), ("model.layers.0.self_attn.q_proj.weight", (4, 16, 64))])
def test_a_misshapen_tensor_is_named_with_both_shapes(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    wanted = list(PLAIN.shapes(PLAIN.config)[name])
    error = refused_tensors(tmp_path, PLAIN, {**PLAIN.tensors(), name: np.ones(shape, np.float32)})
    assert (error.code, error.exit_code) == ("T203", 4)
    assert error.says == f"tensor {name} is f32{str(list(shape)).replace(' ', '')}, llama needs {wanted} here"


def test_an_unknown_layout_shows_twenty_names(tmp_path: Path) -> None:
    renamed = {n.replace("model.layers", "transformer.h").replace("model.", "transformer.").replace("lm_head", "head"): x
               for n, x in PLAIN.tensors().items()}
    error = refused_tensors(tmp_path, PLAIN, renamed)
    assert (error.code, error.exit_code) == ("T205", 4)
    head, rest = error.says.split(" First tensors: ")
    names, tail = rest.split(". Expected e.g. ")
    assert head == f"HF decoder layout not recognized under {tmp_path / 'model'}."
    assert (len(names.split(", ")), set(names.split(", ")) <= set(renamed)) == (20, True)
    assert tail == "model.layers.0.self_attn.q_proj.weight. See docs/huggingface_support.md"


# --- element types and containers

@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2", "I64", "I8", "U8"])
def test_an_element_type_that_is_no_weight_is_refused(dtype: str, tmp_path: Path) -> None:
    size, at, header = (8 if dtype == "I64" else 1), 0, {}
    for name, shape in PLAIN.shapes(PLAIN.config).items():
        end = at + size * int(np.prod(shape))
        header[name] = raw_safetensors.entry(dtype, list(shape), at, end)
        at = end
    tmp_path.joinpath("model.safetensors").write_bytes(raw_safetensors.st_bytes(header, b"\x01" * at))
    write_config(tmp_path, PLAIN.config)
    error = refused(tmp_path)
    assert (error.says, error.exit_code) == (f"safetensors dtype {dtype} is not loaded. {CONVERT}", 3)
    assert "model.safetensors" in str(error)


def test_one_integer_tensor_among_floats_is_refused(tmp_path: Path) -> None:
    tensors = {n: ("I64" if n == "model.norm.weight" else "F32", x) for n, x in PLAIN.tensors().items()}
    write_weights(tmp_path, tensors)
    write_config(tmp_path, PLAIN.config)
    error = refused(tmp_path)
    assert (error.says, error.code) == (f"safetensors dtype I64 is not loaded. {CONVERT}", "T204")


def test_f64_tensors_are_narrowed(tmp_path: Path) -> None:
    write_weights(tmp_path, {n: ("F64", x) for n, x in PLAIN.tensors().items()})
    write_config(tmp_path, PLAIN.config)
    theirs = parity.golden("llama", PLAIN)["runs"][0]
    ours = parity.run(parity.session(tmp_path, tmp_path / "out"), PLAIN.prompts()[0])
    assert parity.compare_with_golden(ours, theirs) <= parity.TOLERANCE


@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes", "fp8", "compressed-tensors"])
def test_a_quantised_folder_is_refused(method: str, folder: Path) -> None:
    error = refused_config(folder, {**PLAIN.config, "quantization_config": {"quant_method": method, "bits": 4}})
    assert error.says == (f"quantized safetensors: {method}. HF quantized checkpoints are not loaded. "
                          "Convert to BF16 safetensors or GGUF (Q4_K / IQ4_NL) and retry.")
    assert error.exit_code == 3


def test_a_pickle_is_never_opened(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    trap = b"cos\nsystem\n(S'touch " + str(tmp_path / "opened").encode() + b"'\ntR."
    (folder / "pytorch_model.bin").write_bytes(trap)
    error = refused(folder)
    assert error.says == "need *.safetensors (convert with transformers / safetensors.torch.save_file)"
    assert (error.exit_code, (tmp_path / "opened").exists()) == (3, False)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", PLAIN.but(shards=2))
    (folder / "model-00002-of-00002.safetensors").unlink()
    error = refused(folder)
    assert error.exit_code == 4
    assert error.says == "missing shard model-00002-of-00002.safetensors, which holds 19 tensors"


def test_shards_and_one_file_give_the_same_artifact(tmp_path: Path) -> None:
    def made(case: Case) -> bytes:
        compile_model(write_folder(tmp_path / case.name, case), tmp_path / f"{case.name}.out")
        return b"".join((tmp_path / f"{case.name}.out" / f"model.onnx{end}").read_bytes() for end in ("", ".data"))
    assert made(PLAIN.set("one")) == made(PLAIN.set("three").but(shards=3))
