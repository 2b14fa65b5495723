"""The GGUF reader: what independent writers wrote comes back exactly, and no malformed file gets past it."""
from __future__ import annotations

import os
import random
import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from malformed_gguf import ARCH, F32, MALFORMED, Q8_0, tensor
from raw_gguf import Raw, gguf_bytes
from refusals import refused

from uaii.frontend import blob
from uaii.frontend.gguf import Gguf
from uaii.frontend.gguf_types import NAMES, ggml_type
from uaii.inspection import inspect
from uaii.ir.diag import Diagnostic, Malformed, Unsupported, Usage
from uaii.ir.loc import File
from uaii.ir.types import BLOCKS


def write(tmp_path: Path, data: bytes | str, name: str = "m.gguf") -> Path:
    path = tmp_path / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


# --- what other writers wrote ---


def test_reads_what_gguf_py_wrote(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    floats = rng.standard_normal((4, 256)).astype(np.float32)
    q = gguf.GGMLQuantizationType
    packed = {kind.name.lower(): gguf.quants.quantize(floats, kind) for kind in (
        q.F16, q.BF16, q.Q4_0, q.Q4_1, q.Q5_0, q.Q5_1, q.Q8_0, q.TQ1_0, q.TQ2_0, q.MXFP4)}
    plain = {"f32": floats, "f64": floats.astype(np.float64), "i8": rng.integers(-128, 127, (3, 5), np.int8),
             "i32": rng.integers(-9, 9, (2, 3, 4), np.int32), "i64": rng.integers(-9, 9, (7,), np.int64)}
    path = tmp_path / "w.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for name, data in plain.items():
        writer.add_tensor(name, data)
    for name, data in packed.items():
        writer.add_tensor(name, data, raw_dtype=q[name.upper()])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model = Gguf(path)
    for name, data in plain.items():
        assert model.tensors[name].type.shape == data.shape and model.tensors[name].type.elem == name
        assert model.read(name).dtype == data.dtype
        np.testing.assert_array_equal(model.read(name), data)
    for name, data in packed.items():
        assert str(model.tensors[name].type) == f"{name}[4,256]"
        assert model.tensors[name].nbytes == data.nbytes
        want = data.view(np.uint16) if name == "bf16" else data
        assert model.read(name).dtype == want.dtype and model.read(name).shape == want.shape
        np.testing.assert_array_equal(model.read(name), want)


def test_metadata_keeps_values_and_kinds(tmp_path: Path) -> None:
    pairs = [("a.u8", "u8", 255), ("a.i8", "i8", -128), ("a.u16", "u16", 65535), ("a.i16", "i16", -32768),
             ("a.u32", "u32", 2**32 - 1), ("a.i32", "i32", -(2**31)), ("a.f32", "f32", 0.5),
             ("a.u64", "u64", 2**64 - 1),
             ("a.i64", "i64", -(2**63)), ("a.f64", "f64", 1e300), ("a.str", "str", "héé"), ("a.yes", "bool", 1),
             ("a.two", "bool", 2), ("a.no", "bool", 0), ("b.str", "arr[str]", ["x", "", "yz"]),
             ("b.i32", "arr[i32]", [1, -2]),
             ("b.f32", "arr[f32]", [0.25]), ("b.bool", "arr[bool]", [0, 1, 7]), ("b.u64", "arr[u64]", [2**64 - 1])]
    model = Gguf(write(tmp_path, gguf_bytes(pairs)))
    want = {k: bool(v) if kind == "bool" else v for k, kind, v in pairs} | {"b.bool": [False, True, True]}
    assert dict(model.metadata) == want
    assert {k: type(v) for k, v in model.metadata.items()} == {k: type(v) for k, v in want.items()}
    assert {k: model.kind(k) for k in model.metadata} == {k: kind for k, kind, _ in pairs}
    assert not model.tensors and model.blocked() == []


def test_token_bytes_that_are_not_utf8_survive(tmp_path: Path) -> None:
    tokens = [b"\xff\xfe", "é".encode(), b"\xe2\x82", b"a\x00b"]
    model = Gguf(write(tmp_path, gguf_bytes([("tokenizer.ggml.tokens", "arr[str]", tokens)])))
    assert [t.encode("utf-8", "surrogateescape") for t in model.metadata["tokenizer.ggml.tokens"]] == tokens


def test_strict_types_of_keys(tmp_path: Path) -> None:
    model = Gguf(write(tmp_path, gguf_bytes([ARCH, ("llama.block_count", "i32", 2)])))
    assert model.value("llama.block_count", "u32", "i32") == 2
    assert model.value("llama.absent", "u32") is None
    with pytest.raises(Malformed, match="key llama.block_count has wrong type i32 but expected type u32") as err:
        model.value("llama.block_count", "u32")
    assert err.value.code == "G315" and err.value.where == File(str(model.path), "llama.block_count")


def test_version_2_any_order_gaps_alignment_and_trailing_bytes(tmp_path: Path) -> None:
    ones, twos = np.full(6, 1, "<f4").tobytes(), np.full(6, 2, "<f4").tobytes()
    tensors = [tensor("late", data=ones, offset=512), tensor("early", data=twos, offset=0)]
    data = gguf_bytes([ARCH, ("general.alignment", "u32", 128)], tensors, version=2, align=128) + b"trailing"
    model = Gguf(write(tmp_path, data))
    assert model.version == 2 and list(model.tensors) == ["late", "early"] and model.consumed == ("general.alignment",)
    assert model.read("late").tolist() == [[1, 1], [1, 1], [1, 1]] and model.read("early").tolist()[0] == [2, 2]


def test_tensors_share_the_files_memory(tmp_path: Path) -> None:
    model = Gguf(write(tmp_path, gguf_bytes([ARCH], [tensor()])))
    assert np.shares_memory(model.read("w"), model.read("w")) and not model.read("w").flags.writeable


def test_opening_reads_headers_only(tmp_path: Path) -> None:
    path = write(tmp_path, gguf_bytes([ARCH], [Raw("w", (1 << 20, 1 << 8), F32, b"")]))
    os.truncate(path, path.stat().st_size + (1 << 30))
    tracemalloc.start()
    rows = Gguf(path).read("w")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows.shape == (256, 1 << 20) and peak < 1 << 20


def test_fingerprint_follows_the_header_and_not_the_weights(tmp_path: Path) -> None:
    made = [(1, bytes(24)), (1, bytes([9]) * 24), (2, bytes(24))]
    paths = [write(tmp_path, gguf_bytes([("a", "u8", n)], [tensor(data=data)]), f"{i}.gguf") for i, (n, data) in
             enumerate(made)]
    first, weights, header = (Gguf(path).fingerprint()["files"][0] for path in paths)
    assert first["header_sha256"] == weights["header_sha256"] != header["header_sha256"]
    assert (first["name"], first["size"]) == ("0.gguf", paths[0].stat().st_size)


# --- files that must be refused ---


@pytest.mark.parametrize("case", MALFORMED)
def test_refuses(tmp_path: Path, case: str) -> None:
    data, code, at, reason = MALFORMED[case]
    path = write(tmp_path, data)
    with pytest.raises(Diagnostic) as err:
        Gguf(path)
    assert (err.value.code, err.value.where) == (code, File(str(path), at)), str(err.value)
    assert reason in err.value.says and err.value.hint
    assert isinstance(err.value, Unsupported if code == "G302" else Malformed)


@pytest.mark.parametrize("case", MALFORMED)
def test_compile_and_inspect_refuse_the_same(tmp_path: Path, case: str) -> None:
    """With the same code, place and reason; a file cut in its data is inspected all the same, and blocked."""
    data, code, at, reason = MALFORMED[case]
    path = write(tmp_path, data)
    error = refused(path)
    assert (error.code, error.where) == (code, File(str(path), at)) and reason in error.says
    report = inspect(path)
    assert (report.blockers[0].code, str(report.blockers[0])) == (code, str(error)) and report.exit_code == error.exit_code


def test_a_short_file_cannot_make_the_reader_allocate(tmp_path: Path) -> None:
    path = write(tmp_path, gguf_bytes([("k", "raw", struct.pack("<IIQ", 9, 4, 2**40))]))
    tracemalloc.start()
    with pytest.raises(Malformed):
        Gguf(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_sparse_file_cannot_either(tmp_path: Path) -> None:
    long = write(tmp_path, gguf_bytes([("k", "raw", struct.pack("<IQ", 8, 2**31))]), "string.gguf")
    many = write(tmp_path, gguf_bytes([("k", "raw", struct.pack("<IIQ", 9, 0, 2**25))]), "array.gguf")
    for path, reason in ((long, "a header has at most"), (many, "array elements")):
        os.truncate(path, 2**32)
        with pytest.raises(Malformed, match=reason) as err:
            Gguf(path)
        assert err.value.code == "G303"


@pytest.mark.parametrize(("number", "reason"), [
    (4, "GGUF tensor type Q4_2 was removed from ggml (tensor w)"), (31, "GGUF tensor type Q4_0_4_4 was removed"),
    (33, "Q4_0_8_8 was removed"), (36, "IQ4_NL_4_4 was removed"), (9, "Q8_1 is for activations"),
    (25, "I16 is not loaded"), (40, "NVFP4 is not loaded"), (41, "Q1_0 is not loaded"), (43, "number 43 is unknown"),
    (2**32 - 1, "number 4294967295 is unknown")])
def test_types_that_are_not_loaded_can_be_inspected(tmp_path: Path, number: int, reason: str) -> None:
    data = gguf_bytes([ARCH], [tensor("ok", data=bytes(24)), tensor(dims=(256,), kind=number, data=bytes(1024))])
    path = write(tmp_path, data)
    with pytest.raises(Unsupported) as err:
        Gguf(path)
    assert err.value.code == "G309" and reason in err.value.says and err.value.where == File(str(path), "tensor w")
    model = Gguf(path, inspect=True)
    assert [str(e) for e in model.blocked()] == [str(err.value)]
    assert model.tensors["w"].type.shape == (256,) and model.read("ok").shape == (3, 2)
    with pytest.raises(Unsupported, match="GGUF tensor type"):
        model.read("w")


def test_type_numbers_and_blocks_are_those_of_gguf_py() -> None:
    for kind in gguf.GGMLQuantizationType:
        assert NAMES[kind] == kind.name.lower()
        if kind.name != "Q8_1":  # gguf-py gives 40 bytes; ggml-common.h has two f16 and 32 i8
            block = ggml_type(kind).block
            assert block is not None and (block.size, block.nbytes) == gguf.GGML_QUANT_SIZES[kind]
    assert set(BLOCKS) <= set(NAMES)


def test_a_header_alone_can_be_inspected(tmp_path: Path) -> None:
    path = write(tmp_path, gguf_bytes([ARCH], [tensor("a"), tensor("b")])[:-24])
    model = Gguf(path, inspect=True)
    assert [e.code for e in model.blocked()] == ["G311"] and list(model.tensors) == ["a", "b"]
    assert model.read("a").shape == (3, 2)
    with pytest.raises(Malformed, match="tensor b|truncated"):
        model.read("b")


def test_not_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    for name in ("pipe.gguf", "absent.gguf", "."):
        with pytest.raises(Usage, match="not a regular file") as err:
            Gguf(tmp_path / name)
        assert err.value.code == "U003"


# --- split sets ---


def split(tmp_path: Path, count: int = 3, total: int | None = None, prefix: str = "g", key: str = "u16") -> list[Path]:
    paths = []
    for i in range(count):
        pairs = [("split.no", key, i), ("split.count", "u16", count),
                 ("split.tensors.count", "i32", count - 1 if total is None else total)]
        # The first part holds the metadata and no tensors, as llama-gguf-split can write it.
        tensors = [tensor(f"{prefix}{i}", data=np.full(6, i, "<f4").tobytes())] if i else []
        data = gguf_bytes([*([] if i else [ARCH]), *pairs], tensors)
        paths.append(write(tmp_path, data, f"{prefix}-{i + 1:05d}-of-{count:05d}.gguf"))
    return paths


@pytest.mark.parametrize("given", [0, 1, 2])
def test_any_part_stands_for_the_set(tmp_path: Path, given: int) -> None:
    paths = split(tmp_path)
    model = Gguf(paths[given])
    assert model.path == paths[0] and model.metadata["general.architecture"] == "llama"
    assert list(model.tensors) == ["g1", "g2"] and model.read("g2")[0, 0] == 2 and model.read("g1")[0, 0] == 1
    assert model.consumed == ("split.no", "split.count", "split.tensors.count")
    assert [f["name"] for f in model.fingerprint()["files"]] == [p.name for p in paths]


def test_split_set_behind_the_links_of_the_hugging_face_cache(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshots").mkdir()
    for i, path in enumerate(split(tmp_path)):
        path.rename(tmp_path / "blobs" / str(i))
        (tmp_path / "snapshots" / path.name).symlink_to(Path("../blobs") / str(i))
    model = Gguf(tmp_path / "snapshots" / "g-00002-of-00003.gguf")
    assert model.read("g2")[0, 0] == 2


@pytest.mark.parametrize("count", [0, 1])
def test_a_merged_file_that_kept_its_split_keys_is_whole(tmp_path: Path, count: int) -> None:
    data = gguf_bytes([("split.count", "u16", count)], [tensor()])
    assert list(Gguf(write(tmp_path, data, "x-00001-of-00003.gguf")).tensors) == ["w"]


def test_missing_part_is_named(tmp_path: Path) -> None:
    paths = split(tmp_path)
    paths[2].unlink()
    with pytest.raises(Malformed, match="missing part g-00003-of-00003.gguf") as err:
        Gguf(paths[1])
    assert err.value.code == "G312"
    paths[1].unlink()
    with pytest.raises(Malformed, match="missing part g-00002-of-00003.gguf and 1 more of 3 parts") as err:
        Gguf(paths[0])
    assert err.value.notes == ["g-00003-of-00003.gguf"]
    last = split(tmp_path)[2]
    paths[1].unlink()
    with pytest.raises(Malformed, match="missing part g-00002-of-00003.gguf"):
        Gguf(last, inspect=True)
    model = Gguf(paths[0], inspect=True)
    assert [e.code for e in model.blocked()] == ["G312"] and model.metadata["general.architecture"] == "llama"


def odd(tmp_path: Path, case: str) -> Path:
    paths = split(tmp_path, total=7) if case == "total" else split(tmp_path, key="u32" if case == "kind" else "u16")
    if case == "renamed":
        return paths[1].rename(tmp_path / "other.gguf")
    if case == "number 9" or case == "no number":
        keys = [("split.no", "u16", 9)] if case == "number 9" else []
        return write(tmp_path, gguf_bytes([*keys, ("split.count", "u16", 3)]), "g-00003-of-00003.gguf")
    if case.startswith("wrong number"):
        shuffled = [p.read_bytes() for p in paths]
        paths[1].write_bytes(shuffled[2])
        paths[2].write_bytes(shuffled[1])
    if case == "two models":
        paths[2].write_bytes(gguf_bytes([("split.no", "u16", 2), ("split.count", "u16", 3),
                                         ("general.architecture", "str", "qwen2")], [tensor("g2")]))
    if case == "tensor twice":
        paths[2].write_bytes(gguf_bytes([("split.no", "u16", 2), ("split.count", "u16", 3)], [tensor("g1")]))
    if case == "no keys":
        return write(tmp_path, gguf_bytes([ARCH], [tensor()]), "x-00001-of-00002.gguf")
    return paths[1] if case.endswith("given") else paths[0]


@pytest.mark.parametrize(("case", "code", "reason"), [
    ("renamed", "G313", "other.gguf is part 2 of 3 by its keys and must be named PREFIX-00002-of-00003.gguf"),
    ("wrong number", "G313", "g-00002-of-00003.gguf has split.no 2 and split.count 3, its name says 1 and 3"),
    ("wrong number, given", "G313", "g-00002-of-00003.gguf is part 3 of 3 by its keys and must be named g-00003-of-00003"),
    ("number 9", "G313", "is part 9 of 3 by its keys"), ("no number", "G313", "is part None of 3 by its keys"),
    ("two models", "G313", "disagree on general.architecture: they are of two models"),
    ("tensor twice", "G313", "both hold the tensor g1"),
    ("total", "G313", "the 3 parts hold 2 tensors, g-00001-of-00003.gguf says 7"),
    ("kind", "G315", "key split.no has wrong type u32 but expected type u16"),
    ("no keys", "G313", "is named as part of a set and has no key split.count")])
def test_sets_that_do_not_agree(tmp_path: Path, case: str, code: str, reason: str) -> None:
    path = odd(tmp_path, case)
    with pytest.raises(Malformed) as err:
        Gguf(path)
    assert err.value.code == code and reason in err.value.says


def test_parts_joined_with_cat_are_explained(tmp_path: Path) -> None:
    joined = write(tmp_path, b"".join(p.read_bytes() for p in split(tmp_path)), "joined.gguf")
    with pytest.raises(Malformed, match="several GGUF files joined into one") as err:
        Gguf(joined)
    assert err.value.code == "G314" and "llama-gguf-split --merge" in err.value.hint


@pytest.mark.parametrize("name", ["g.gguf.part1of2", "g.gguf-split-b", "g.gguf.part00", "g.gguf.001"])
def test_byte_slices_are_explained(tmp_path: Path, name: str) -> None:
    with pytest.raises(Malformed, match="is a slice of the bytes of g.gguf") as err:
        Gguf(write(tmp_path, gguf_bytes([ARCH])[:30], name))
    assert err.value.code == "G314" and "cat g.gguf" in err.value.hint


# --- fuzz ---


def test_only_diagnostics_come_out_of_mutated_files(tmp_path: Path) -> None:
    base = gguf_bytes([ARCH, ("general.alignment", "u32", 32), ("split.count", "u16", 1),
                       ("t", "arr[str]", ["ab", "c"]),
                       ("f", "arr[f32]", [1.0, 2.0]), ("eps", "f64", 1e-5)],
                      [tensor("a"), tensor("q", dims=(32, 2), kind=Q8_0, data=bytes(68)),
                       tensor("h", dims=(4,), kind=1)])
    rng = random.Random(7)
    path = tmp_path / "m.gguf"
    codes: dict[str, int] = {}
    for _ in range(2000):
        data = bytearray(base)
        for _ in range(rng.choice((1, 1, 2, 4))):
            at = rng.randrange(len(data))
            data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        if rng.random() < 0.2:
            del data[rng.randrange(len(data)):]
        path.write_bytes(data)
        try:
            model = Gguf(path, inspect=rng.random() < 0.3)
            for name in model.tensors:
                model.read(name)
        except Diagnostic as err:
            assert isinstance(err, Malformed | Unsupported) and isinstance(err.where, File), repr(err)
            str(err).encode()
            codes[err.code] = codes.get(err.code, 0) + 1
    assert len(codes) >= 10, codes


def test_pages_that_are_let_go_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mapped file is this process's memory page by page; arrays handed out before stay right."""
    whole = np.random.default_rng(0).integers(0, 256, 1 << 20).astype(np.uint8)
    (tmp_path / "w").write_bytes(whole.tobytes())
    monkeypatch.setattr(blob, "KEPT", 1 << 16)
    file = blob.Blob(tmp_path / "w")
    parts = [file.array(at, 1 << 15, "u8", (1 << 15,)) for at in range(0, 1 << 20, 1 << 15)]
    assert file._given <= 1 << 16
    np.testing.assert_array_equal(np.concatenate(parts), whole)
