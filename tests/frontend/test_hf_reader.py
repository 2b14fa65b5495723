"""The Hugging Face folder reader: what safetensors wrote comes back exactly, and no folder is guessed at."""
from __future__ import annotations

import json
import os
import random
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from raw_safetensors import entry, f32_file, folder, st_bytes
from safetensors.numpy import save_file

from uaii.frontend.hf import HfFolder
from uaii.frontend.hf_blockers import CONVERT, MXFP4
from uaii.ir.diag import Diagnostic, Malformed, Unsupported, Usage
from uaii.ir.loc import File

TWO = {"model-00001-of-00002.safetensors": ["a", "b"], "model-00002-of-00002.safetensors": ["c"]}
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 4976698672\n"
INDEX = "model.safetensors.index.json"


def refused(path: Path, code: str, reason: str, kind: type[Diagnostic] = Malformed) -> Diagnostic:
    """The error of opening for compilation; inspecting lists the same one, or raises it when there is no config."""
    with pytest.raises(kind) as err:
        HfFolder(path)
    assert err.value.code == code and reason in str(err.value), str(err.value)
    assert err.value.where is not None and err.value.hint
    try:
        assert str(err.value) in [str(e) for e in HfFolder(path, inspect=True).blocked()]
    except Diagnostic as same:
        assert str(same) == str(err.value)
    return err.value


# --- what other writers wrote ---


def test_reads_what_safetensors_wrote(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    arrays = {"f32": rng.standard_normal((3, 4)).astype(np.float32),
              "f16": rng.standard_normal((5,)).astype(np.float16),
              "f64": rng.standard_normal((2, 2)), "bf16": rng.standard_normal((4, 2)).astype(ml_dtypes.bfloat16),
              "i8": np.arange(-3, 3, dtype=np.int8), "u8": np.arange(6, dtype=np.uint8),
              "i32": np.arange(-2, 2, dtype=np.int32), "i64": np.array(7, np.int64), "bool": np.array([[True, False]]),
              "f16.empty": np.zeros((0, 4), np.float16)}
    save_file(arrays, folder(tmp_path) / "model.safetensors", metadata={"format": "pt"})
    model = HfFolder(tmp_path)
    assert set(model.tensors) == set(arrays)
    for name, want in arrays.items():
        stored = model.tensors[name]
        assert stored.type.elem == name.partition(".")[0] and stored.type.shape == want.shape
        assert stored.nbytes == want.nbytes
        if name == "bf16":
            want = want.view(np.uint16)
        assert model.read(name).dtype == want.dtype
        np.testing.assert_array_equal(model.read(name), want)


def test_every_bf16_and_f16_pattern_survives(tmp_path: Path) -> None:
    bits = np.arange(65536, dtype=np.uint16)
    save_file({"b": bits.view(ml_dtypes.bfloat16), "h": bits.view(np.float16)}, folder(tmp_path) / "model.safetensors")
    model = HfFolder(tmp_path)
    np.testing.assert_array_equal(model.read("b"), bits)
    np.testing.assert_array_equal(model.read("h").view(np.uint16), bits)
    assert np.shares_memory(model.read("b"), model.read("b")) and not model.read("b").flags.writeable


def test_any_byte_but_zero_is_true(tmp_path: Path) -> None:
    data = st_bytes({"m": entry("BOOL", [3], 0, 3)}, b"\x00\x01\x02")
    (folder(tmp_path) / "model.safetensors").write_bytes(data)
    assert HfFolder(tmp_path).read("m").tolist() == [False, True, True]


def test_one_file_and_two_shards_are_the_same_model(tmp_path: Path) -> None:
    two = HfFolder(folder(tmp_path / "two", shards=TWO))
    assert {n: two.read(n).tolist() for n in two.tensors} == {"a": [0, 0], "b": [1, -1], "c": [0, 0]}
    assert two.tensors["c"].file.name == "model-00002-of-00002.safetensors"
    assert [f["name"] for f in two.fingerprint()["files"]] == ["config.json", INDEX, *TWO]


def test_shards_behind_the_links_of_the_hugging_face_cache(tmp_path: Path) -> None:
    snapshot = folder(tmp_path / "snapshots/0", shards=TWO)
    (tmp_path / "blobs").mkdir()
    for i, path in enumerate(sorted(snapshot.iterdir())):
        path.rename(tmp_path / "blobs" / str(i))
        path.symlink_to(Path("../../blobs") / str(i))
    assert HfFolder(snapshot).read("b").tolist() == [1, -1]
    (tmp_path / "blobs/1").unlink()
    refused(snapshot, "H323", "missing shard model-00001-of-00002.safetensors")
    refused(snapshot, "H323", "a link to ../../blobs/1, which is not there")
    refused(tmp_path, "H310", "give one of the folders under snapshots")


def test_a_lone_file_of_another_name_is_the_model(tmp_path: Path) -> None:
    (folder(tmp_path) / "model.safetensors").rename(tmp_path / "weights.safetensors")
    assert list(HfFolder(tmp_path).tensors) == ["w"]


def test_what_is_left_aside_is_said(tmp_path: Path) -> None:
    f32_file(folder(tmp_path) / "consolidated.safetensors", "other")
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02")
    (tmp_path / "training_args.bin").write_bytes(b"\x80\x02")
    model = HfFolder(tmp_path)
    assert list(model.tensors) == ["w"]
    assert model.notes == ["pytorch_model.bin ignored: a pickle, never opened",
                           "consolidated.safetensors ignored: the publisher's own copy, beside the Hugging Face one"]


def test_config_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "eps": 1e-5}')
    model = HfFolder(tmp_path, weights=False)
    assert dict(model.metadata) == {"model_type": "llama", "eps": 1e-5} and not model.tensors and model.generation == {}
    error = refused(tmp_path, "H320", "no weights in")
    assert error.why.startswith("looked for model.safetensors, model.safetensors.index.json")


def test_generation_config(tmp_path: Path) -> None:
    (folder(tmp_path) / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    assert HfFolder(tmp_path).generation == {"eos_token_id": [1, 2]}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 2}')
    with pytest.raises(Malformed, match="not JSON") as err:
        _ = HfFolder(tmp_path).generation
    assert err.value.code == "H312"
    (tmp_path / "generation_config.json").unlink()
    (tmp_path / "generation_config.json").mkdir()
    with pytest.raises(Usage, match="generation_config.json is not a regular file"):
        _ = HfFolder(tmp_path).generation


def test_a_text_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uaii.frontend.jsonfile.LIMIT", 9)
    refused(folder(tmp_path), "H310", "config.json is larger than 9 bytes")


# --- config.json ---


@pytest.mark.parametrize(("text", "code", "at", "reason"), [
    (b'{"a": 1,}', "H310", "line 1 column 9", "not JSON"),
    (b"[1]", "H310", "line 1", "must hold a JSON object, holds a list"),
    (b'{"a": {"rope_theta": 1, "x": 2, "rope_theta": 3}}', "H310", "rope_theta", "the key rope_theta is there twice"),
    (b'{"a": {"b": [1, NaN]}}', "H310", "a.b[1]", "a.b[1] is NaN"),
    (b'{"a": -Infinity}', "H310", "a", "a is -Infinity"),
    (b'{"a": 1e999}', "H310", "a", "a is Infinity"), (b'{"a": ' + b"9" * 5000 + b"}", "H310", "", "more digits"),
    (b'{"a": "\xff"}', "H310", "byte 7", "not UTF-8 text"), (b'{"a":' * 5000, "H310", "", "nested too deeply"),
    (b'\xef\xbb\xbf{}', "H310", "line 1 column 1", "not JSON"),
    (LFS, "H301", "", "this is a Git LFS pointer (real size 4976698672 bytes); run git lfs pull"),
    (b"<html><body>", "H301", "byte 0", "config.json is a web page"), (b"", "H301", "", "config.json is empty")])
def test_broken_config(tmp_path: Path, text: bytes, code: str, at: str, reason: str) -> None:
    (folder(tmp_path) / "config.json").write_bytes(text)
    assert refused(tmp_path, code, reason).where == File(str(tmp_path / "config.json"), at)


# --- safetensors headers ---

A = entry("F32", [2], 0, 8)
HEADERS = {
    "lfs": (LFS, "H301", "", "this is a Git LFS pointer (real size 4976698672 bytes); run git lfs pull"),
    "html": (b"<!doctype html><html>", "H301", "byte 0", "is a web page (HTML)"),
    "empty": (b"", "H301", "", "is empty (0 bytes)"),
    "zeros": (bytes(8), "H301", "byte 0", "begins with zeros only (8 bytes looked at)"),
    "zip": (b"PK\x03\x04" + bytes(40), "H302", "byte 0", "it is a zip archive"),
    "gguf": (b"GGUF" + bytes(40), "H302", "byte 0", "it is a GGUF file"),
    "four bytes": (b"\x10\0\0\0", "H311", "byte 4", "a header needs 8 bytes and the file has 4"),
    "length 2^62": (st_bytes({"a": A}, bytes(8), length=2**62), "H302", "byte 0", f"header of {2**62} bytes"),
    "length past the end": (st_bytes({"a": A}, bytes(8), length=999), "H311", "byte 0",
                            "its header needs 1007 bytes and the file has"),
    "not an object": (st_bytes("[1]"), "H302", "byte 0", "must begin with {"),
    "not JSON": (st_bytes('{"a": }'), "H302", "header, line 1 column 7", "not JSON"),
    "name twice": (st_bytes('{"a": %s, "a": %s}' % ((json.dumps(A),) * 2), bytes(8)), "H302", "header, a",
                   "the key a is there twice"),
    "metadata": (st_bytes({"__metadata__": {"x": 1}}), "H303", "__metadata__", "must map names to strings"),
    "metadata list": (st_bytes({"__metadata__": []}), "H303", "__metadata__", "must map names to strings"),
    "no shape": (st_bytes({"a": {"dtype": "F32", "data_offsets": [0, 8]}}, bytes(8)), "H303", "a",
                 "must have dtype, shape and data_offsets"),
    "one key more": (st_bytes({"a": A | {"scale": 2}}, bytes(8)), "H303", "a", "has dtype, shape, data_offsets, scale"),
    "not an entry": (st_bytes({"a": 3}), "H303", "a", "has a number"),
    "dtype": (st_bytes({"a": entry("F12", [2], 0, 8)}, bytes(8)), "H303", "a.dtype", "has the dtype F12"),
    "dtype is a list": (st_bytes({"a": A | {"dtype": [[]]}}, bytes(8)), "H303", "a.dtype",
                        "has the dtype a list of 1 entries"),
    "shape -1": (st_bytes({"a": entry("F32", [-1, -2], 0, 8)}, bytes(8)), "H303", "a.shape", "has the shape [-1, -2]"),
    "shape true": (st_bytes({"a": A | {"shape": [True, 2]}}, bytes(8)), "H303", "a.shape", "has the shape [True, 2]"),
    "shape 2.0": (st_bytes({"a": A | {"shape": [2.0]}}, bytes(8)), "H303", "a.shape", "has the shape [2.0]"),
    "shape 2^80": (st_bytes({"a": A | {"shape": [2**40, 2**40]}}, bytes(8)), "H303", "a.shape", "has the shape"),
    "shape of 33": (st_bytes({"a": A | {"shape": [1] * 32 + [2]}}, bytes(8)), "H303", "a.shape",
                    "a list of 33 entries"),
    "offsets": (st_bytes({"a": A | {"data_offsets": [8, 0]}}, bytes(8)), "H303", "a.data_offsets", "[8, 0]"),
    "offset -8": (st_bytes({"a": A | {"data_offsets": [-8, 0]}}, bytes(8)), "H303", "a.data_offsets", "[-8, 0]"),
    "three offsets": (st_bytes({"a": A | {"data_offsets": [0, 8, 8]}}, bytes(8)), "H303", "a.data_offsets",
                      "[0, 8, 8]"),
    "size": (st_bytes({"a": entry("F16", [2], 0, 8)}, bytes(8)), "H303", "a.data_offsets",
             "a F16[2] needs 4 bytes and its data_offsets span 8"),
    "no name": (st_bytes({"": A}, bytes(8)), "H303", "", "a tensor name is empty"),
    "escape in a name": (st_bytes({"a\x1b[31m": A}, bytes(8)), "H303", r"'a\x1b[31m'", r"'a\x1b[31m'"),
    "hole": (st_bytes({"a": A, "b": entry("F32", [2], 16, 24)}, bytes(24)), "H304", "b.data_offsets",
             "b begins at 16 and the tensor before it ends at 8: a hole"),
    "hole at the start": (st_bytes({"a": entry("F32", [2], 8, 16)}, bytes(16)), "H304", "a.data_offsets", "a hole"),
    "overlap": (st_bytes({"a": A, "b": entry("F32", [2], 4, 12)}, bytes(12)), "H304", "b.data_offsets", "an overlap"),
    "trailing": (st_bytes({"a": A}, bytes(9)), "H304", f"byte {len(st_bytes({'a': A})) + 8}",
                 "1 bytes follow the last tensor"),
    "one byte short": (st_bytes({"a": A}, bytes(7)), "H311", "tensor a",
                       f"need {len(st_bytes({'a': A})) + 8} bytes and the file has {len(st_bytes({'a': A})) + 7}"),
    "offset 2^62": (st_bytes({"a": entry("U8", [2**55], 0, 2**55)}, bytes(8)), "H311", "tensor a", "is truncated"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_broken_header(tmp_path: Path, case: str) -> None:
    data, code, at, reason = HEADERS[case]
    path = folder(tmp_path) / "model.safetensors"
    path.write_bytes(data)
    assert refused(tmp_path, code, reason).where == File(str(path), at)


def test_only_diagnostics_come_out_of_mutated_headers(tmp_path: Path) -> None:
    header = {"__metadata__": {"format": "pt"}, "a": A, "b": entry("BF16", [2, 3], 8, 20),
              "c": entry("F8_E4M3", [4], 20, 24)}
    base = st_bytes(header, bytes(24))
    path = folder(tmp_path) / "model.safetensors"
    rng = random.Random(7)
    codes: dict[str, int] = {}
    for _ in range(2000):
        data = bytearray(base)
        for _ in range(rng.choice((1, 1, 2, 4))):
            digits = [i for i in range(8, len(data) - 24) if data[i] in b"0123456789"] or [8]
            at = rng.choice((rng.choice(digits), rng.choice(digits), rng.randrange(len(data) - 24), rng.randrange(8)))
            data[at] = rng.choice(b"0123456789" if at in digits else (*b'019[]{}",:-eE', 0, 0xFF, rng.randrange(256)))
        if rng.random() < 0.1:  # both ends moved together: only the order of the tensors is wrong
            data = bytearray(base.replace(b"[8, 20]", b"[%d, %d]" % ((n := rng.randrange(10)), n + 12)))
        if rng.random() < 0.2:
            del data[rng.randrange(len(data)):]
        path.write_bytes(data)
        try:
            model = HfFolder(tmp_path, inspect=True)
            for name in model.tensors:
                model.read(name)
            raised = model.blocked()
        except Diagnostic as err:
            raised = [err]
        for error in raised:
            assert isinstance(error, Malformed | Unsupported) and isinstance(error.where, File), repr(error)
            str(error).encode()
            codes[error.code] = codes.get(error.code, 0) + 1
    assert {"H302", "H303", "H304", "H309", "H311"} <= set(codes), codes


# --- the index ---


def index(path: Path, **placed: str) -> Path:
    text = json.loads((path / INDEX).read_text())
    (path / INDEX).write_text(json.dumps({**text, "weight_map": {**text["weight_map"], **placed}}))
    return path


def test_missing_shard_is_named_with_what_it_holds(tmp_path: Path) -> None:
    three = {**TWO, "model-00003-of-00003.safetensors": ["d"]}
    (folder(tmp_path, shards=three) / "model-00001-of-00002.safetensors").unlink()
    refused(tmp_path, "H323", "missing shard model-00001-of-00002.safetensors, which holds 2 tensors")
    f32_file(tmp_path / "consolidated.safetensors", "a")  # another naming is no replacement
    (tmp_path / "model-00003-of-00003.safetensors").unlink()
    error = refused(tmp_path, "H323", "which holds 2 tensors and 1 more of 3 shards")
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    refused(tmp_path, "H323", "which holds 2 tensors and 2 more of 3 shards")
    assert error.notes == ["missing shard model-00003-of-00003.safetensors: 1 tensors"]


@pytest.mark.parametrize("name", ["../x.safetensors", "/x.safetensors", "sub/../../x.safetensors", "..\\x.safetensors",
                                  "C:x.safetensors"])
def test_index_may_not_leave_the_folder(tmp_path: Path, name: str) -> None:
    f32_file(tmp_path / "x.safetensors", "d")
    error = refused(index(folder(tmp_path / "m", shards=TWO), d=name), "H324", "outside the folder")
    assert error.where == File(str(tmp_path / "m" / INDEX), "weight_map.d")


@pytest.mark.parametrize(("text", "reason"), [
    ('{"weight_map": {}}', "weight_map is empty"), ("{}", "weight_map is absent"),
    ('{"weight_map": 3}', "weight_map is a number"),
    ('{"weight_map": {"a": 3}}', "a is mapped to 3"), ('{"weight_map": {"a": "x.bin"}}', "a is mapped to x.bin"),
    ('{"weight_map": {"a": "%s.safetensors"}}' % ("x" * 300), "not a *.safetensors file"),
    ('{"weight_map"', "not JSON")])
def test_broken_index(tmp_path: Path, text: str, reason: str) -> None:
    (folder(tmp_path, shards=TWO) / INDEX).write_text(text)
    refused(tmp_path, "H324", reason)


def test_index_and_shards_must_agree(tmp_path: Path) -> None:
    first, second = TWO
    refused(index(folder(tmp_path / "a", shards={**TWO, second: ["c", "e"]}), c=first), "H324",
            f"maps c to {first}, which does not hold it; {second} does")
    refused(index(folder(tmp_path / "b", shards=TWO), d=first), "H324", f"maps d to {first}, which does not hold it\n")
    f32_file(folder(tmp_path / "c", shards=TWO) / second, "c", "extra")
    refused(tmp_path / "c", "H324", f"{second} holds extra and it is not in the index")
    f32_file(folder(tmp_path / "d", shards=TWO) / second, "c", "a")
    refused(tmp_path / "d", "H324", f"{second} holds a and the index maps it to {first}")


def test_two_copies_are_refused(tmp_path: Path) -> None:
    f32_file(folder(tmp_path / "a", shards=TWO) / "model.safetensors", "a", "b", "c")
    error = refused(tmp_path / "a", "H322", INDEX)
    assert "model.safetensors.index.json and model.safetensors" in error.says
    f32_file(folder(tmp_path / "b", shards=TWO) / "model-00001-of-00003.safetensors", "a")
    refused(tmp_path / "b", "H322", "model-00001-of-00003.safetensors")
    f32_file(folder(tmp_path / "c") / "model.fp16.safetensors", "w")
    refused(tmp_path / "c", "H322", "model.fp16.safetensors and model.safetensors")
    (folder(tmp_path / "d", shards=TWO) / "other.safetensors.index.json").write_text("{}")
    refused(tmp_path / "d", "H322", "model.safetensors.index.json and other.safetensors.index.json")


def test_shards_without_an_index(tmp_path: Path) -> None:
    (folder(tmp_path, shards=TWO) / INDEX).unlink()
    refused(tmp_path, "H324", "there is no model.safetensors.index.json")
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    refused(tmp_path, "H324", "model-00001-of-00002.safetensors is a shard")


def test_the_publishers_own_copy_alone(tmp_path: Path) -> None:
    (folder(tmp_path) / "model.safetensors").rename(tmp_path / "consolidated.safetensors")
    assert list(HfFolder(tmp_path).tensors) == ["w"] and HfFolder(tmp_path).notes == []


# --- what is not a loadable model ---


@pytest.mark.parametrize("name",
                         ["pytorch_model.bin", "model.pt", "consolidated.00.pth", "pytorch_model-00001-of-00002.bin"])
def test_pickles_are_never_opened(tmp_path: Path, name: str) -> None:
    (folder(tmp_path) / "model.safetensors").unlink()
    os.mkfifo(tmp_path / name)  # opening it would block for ever
    error = refused(tmp_path, "H321", "need *.safetensors (convert with transformers / safetensors.torch.save_file)",
                    Unsupported)
    assert error.where == File(str(tmp_path / name))


def test_files_of_a_training_run_are_not_weights(tmp_path: Path) -> None:
    (folder(tmp_path) / "model.safetensors").rename(tmp_path / "optimizer.pt")
    refused(tmp_path, "H320", "no weights in")


def test_adapter(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    f32_file(tmp_path / "adapter_model.safetensors", "base_model.model.q.lora_A.weight")
    refused(tmp_path, "H331", "is a LoRA adapter: give the merged model", Unsupported)
    folder(tmp_path)
    refused(tmp_path, "H331", "remove adapter_config.json", Unsupported)


def test_nothing_there(tmp_path: Path) -> None:
    error = refused(tmp_path, "H310", "no config.json in")
    assert "looked for model.safetensors" in error.why and "config.json" in error.why
    (tmp_path / "params.json").write_text("{}")
    refused(tmp_path, "H310", "take the Hugging Face repository")
    with pytest.raises(Usage, match="is not a folder"):
        HfFolder(tmp_path / "params.json")


def test_weights_that_are_no_regular_file(tmp_path: Path) -> None:
    (folder(tmp_path) / "model.safetensors").unlink()
    os.mkfifo(tmp_path / "model.safetensors")
    refused(tmp_path, "U003", "not a regular file", Usage)


def test_code_in_the_folder_is_not_run(tmp_path: Path) -> None:
    folder(tmp_path, {"model_type": "x", "auto_map": {"AutoModelForCausalLM": "modeling_x.X"}})
    (tmp_path / "modeling_x.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    HfFolder(tmp_path)
    assert not (tmp_path / "ran").exists()


# --- quantised folders ---


@pytest.mark.parametrize(("config", "method"), [
    ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq"),
    ({"quantization_config": {"quant_method": "awq"}}, "awq"),
    ({"quantization_config": {"quant_method": "fp8"}}, "fp8"),
    ({"quantization_config": {"load_in_4bit": True}}, "bitsandbytes"), ({"quantization": {"bits": 4}}, "mlx"),
    ({"quantization_config": {"load_in_8bit": True}}, "bitsandbytes"),
    ({"quantization_config": "awq"}, "quantization_config = awq"),
    ({"quantization_config": {}}, "quantization_config without a quant_method"),
    ({"text_config": {"quantization_config": {"quant_method": "compressed-tensors"}}}, "compressed-tensors"),
    ({"compression_config": {"quant_method": "compressed-tensors"}}, "compressed-tensors")])
def test_quantised_by_its_config(tmp_path: Path, config: dict[str, object], method: str) -> None:
    error = refused(folder(tmp_path, config), "H330", method, Unsupported)
    assert error.says == f"quantized safetensors: {method}. {CONVERT}"
    assert CONVERT == ("HF quantized checkpoints are not loaded. "
                       "Convert to BF16 safetensors or GGUF (Q4_K / IQ4_NL) and retry.")
    assert isinstance(error.where, File) and error.where.at.endswith(("_config", "quantization"))


@pytest.mark.parametrize(("names", "method"), [
    (["q.qweight", "q.qzeros", "q.scales", "q.g_idx"], "gptq or awq"), (["q.weight", "q.qzeros"], "gptq or awq"),
    (["q.weight", "q.weight.absmax", "q.weight.quant_map"], "bitsandbytes"), (["q.weight", "q.SCB"], "bitsandbytes"),
    (["q.weight_packed", "q.weight_scale"], "compressed-tensors"), (["q.weight", "q.weight_scale_inv"], "fp8"),
    (["q.weight", "q.scales", "q.biases"], "mlx")])
def test_quantised_by_its_tensors(tmp_path: Path, names: list[str], method: str) -> None:
    f32_file(folder(tmp_path) / "model.safetensors", *names)
    assert refused(tmp_path, "H330", method, Unsupported).says == f"quantized safetensors: {method}. {CONVERT}"


def test_mxfp4(tmp_path: Path) -> None:
    says = f"mxfp4 convert to BF16/GGUF. {CONVERT}"
    config = folder(tmp_path / "a", {"quantization_config": {"quant_method": "mxfp4"}})
    assert refused(config, "H330", "mxfp4", Unsupported).says == says
    f32_file(folder(tmp_path / "b") / "model.safetensors", "experts.gate_up_proj_blocks", "experts.gate_up_proj_scales")
    assert refused(tmp_path / "b", "H330", "mxfp4", Unsupported).says == says


def test_mxfp4_as_gpt_oss_declares_it_passes(tmp_path: Path) -> None:
    words = {"model_type": "gpt_oss", "quantization_config": MXFP4}
    f32_file(folder(tmp_path / "a", words) / "model.safetensors", "experts.gate_up_proj_blocks", "experts.gate_up_proj_scales")
    assert HfFolder(tmp_path / "a").blocked() == []
    f32_file(folder(tmp_path / "b", words) / "model.safetensors", "experts.gate_up_proj_blocks", "q.qweight")
    refused(tmp_path / "b", "H330", "gptq or awq", Unsupported)
    says = f"mxfp4 convert to BF16/GGUF. {CONVERT}"
    other = folder(tmp_path / "c", {**words, "model_type": "llama"})
    assert refused(other, "H330", "mxfp4", Unsupported).says == says


def test_unquantised_names_and_configs_pass(tmp_path: Path) -> None:
    f32_file(folder(tmp_path, {"quantization_config": None}) / "model.safetensors", "blocks.0.weight", "scale",
             "q.bias")
    assert HfFolder(tmp_path).blocked() == []


@pytest.mark.parametrize(("dtype", "bits"), [("F8_E4M3", 8), ("F8_E5M2", 8), ("U16", 16), ("C64", 64), ("F4", 4)])
def test_dtypes_that_are_not_loaded_can_be_inspected(tmp_path: Path, dtype: str, bits: int) -> None:
    header = {"a": A, "b": entry(dtype, [8], 8, 8 + bits), "c": entry(dtype, [8], 8 + bits, 8 + 2 * bits)}
    path = folder(tmp_path) / "model.safetensors"
    path.write_bytes(st_bytes(header, struct.pack("<ff", 1, 2) + bytes(2 * bits)))
    error = refused(tmp_path, "H309", "", Unsupported)
    assert error.says == f"safetensors dtype {dtype} is not loaded. Convert this checkpoint to BF16."
    assert error.where == File(str(path), "tensor b") and error.notes == ["2 tensors have this type"]
    model = HfFolder(tmp_path, inspect=True)
    assert str(model.tensors["c"].type) == f"{dtype.lower()}[8]" and model.tensors["c"].nbytes == bits
    assert model.read("a").tolist() == [1, 2]
    with pytest.raises(Unsupported, match=f"safetensors dtype {dtype} is not loaded"):
        model.read("c")


def test_truncated_weights_can_be_inspected(tmp_path: Path) -> None:
    path = folder(tmp_path) / "model.safetensors"
    f32_file(path, "a", "b")
    os.truncate(path, path.stat().st_size - 1)
    model = HfFolder(tmp_path, inspect=True)
    assert list(model.tensors) == ["a", "b"] and model.read("a").tolist() == [0, 0]
    with pytest.raises(Malformed, match="is truncated"):
        model.read("b")
