"""Which files of a repository `uaii pull` takes: by layout, quantisation and pattern; and the program hf."""
from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hub_cases import INDEX, MODEL, SHARDS, Bench, error
from raw_gguf import Raw, gguf_bytes

from uaii.frontend.hub.choose import Wish, choose, named
from uaii.frontend.hub.listing import Entry, Listing
from uaii.ir.diag import Diagnostic

CONFIG = ["config.json", "tokenizer.json"]
SPLIT = [f"Q8_0/m-Q8_0-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
GGUFS = ["m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m.IQ4_XS.gguf", *SPLIT, "mmproj-m-f16.gguf", "imatrix.gguf", "README.md"]


def listing(*names: str) -> Listing:
    return Listing("org/m", "main", None, tuple(Entry(n, 1000) for n in names))


def chosen(*names: str, include: tuple[str, ...] = (), quant: str | None = None) -> list[str]:
    return choose(listing(*names), Wish(include, quant)).names


def refusal(*names: str, include: tuple[str, ...] = (), quant: str | None = None) -> Diagnostic:
    with pytest.raises(Diagnostic) as caught:
        chosen(*names, include=include, quant=quant)
    return caught.value


# --- Hugging Face folders

@pytest.mark.parametrize(("there", "wanted"), [
    (["model.safetensors"], ["model.safetensors"]),
    (["model.safetensors", "model.fp16.safetensors", "pytorch_model.bin", "model.onnx"], ["model.safetensors"]),
    (["weights.safetensors", "consolidated.safetensors"], ["weights.safetensors"]),
    (["model.safetensors", INDEX, *SHARDS], [INDEX]),
    ([INDEX, "consolidated.safetensors.index.json", "x.gguf"], [INDEX]),
    (["model.safetensors", "onnx/model.safetensors", "original/params.json"], ["model.safetensors"])])
def test_weights_once(there: list[str], wanted: list[str]) -> None:
    assert chosen(*CONFIG, *there) == [*CONFIG, *wanted]


def test_texts() -> None:
    wanted = ["chat_template.jinja", "generation_config.json", "merges.txt", "special_tokens_map.json", "tokenizer.model",
              "tokenizer_config.json", "vocab.json", "additional_chat_templates/rag.jinja"]
    assert sorted(chosen(*CONFIG, *wanted, "modeling.py", "LICENSE", "training_args.bin", "model.safetensors")) == sorted(
        [*CONFIG, *wanted, "model.safetensors"])


@pytest.mark.parametrize(("there", "code", "word"), [
    (["config.json", "pytorch_model.bin"], "N707", "pickles"), (["config.json", "model.pt"], "N707", "pickles"),
    (["config.json"], "N707", "no weights"), (["README.md"], "N707", "no weights"),
    (["model.safetensors"], "N707", "no config.json"),
    (["adapter_config.json", "adapter_model.safetensors"], "N707", "LoRA"),
    (["config.json", *SHARDS], "N709", "no model.safetensors.index.json"),
    (["config.json", "a.safetensors", "b.safetensors"], "N708", "2 files of weights"),
    (["config.json", "consolidated.safetensors"], "N708", "publisher's own")])
def test_what_is_no_model(there: list[str], code: str, word: str) -> None:
    err = refusal(*there)
    assert err.code == code
    assert word in err.says


# --- GGUF

@pytest.mark.parametrize(("quant", "wanted"), [
    ("Q4_K_M", ["m-Q4_K_M.gguf"]), ("q4_k_s", ["m-Q4_K_S.gguf"]), ("IQ4_XS", ["m.IQ4_XS.gguf"]), ("Q8_0", SPLIT)])
def test_a_quantisation_by_name(quant: str, wanted: list[str]) -> None:
    got = choose(listing(*GGUFS), Wish(quant=quant))
    assert (got.names, got.main) == (wanted, wanted[0])


@pytest.mark.parametrize("quant", ["Q4_K", "Q4", "4_K_M", ".*", "Q4_K_M.*", ""])
def test_a_name_is_a_whole_word(quant: str) -> None:
    assert named("m-Q4_K_M.gguf", "Q4_K_M") and named("M_q4_k_m.gguf", "Q4_K_M") and named("Q4_K_M/m.gguf", "Q4_K_M")
    assert not named("m-Q4_K_M.gguf", quant)
    assert not named("m-IQ4_K_M.gguf", "Q4_K_M")


def test_several_are_listed_with_sizes() -> None:
    err = refusal(*GGUFS)
    assert (err.code, err.says) == ("N708", "org/m holds 4 GGUF models")
    assert err.hint == "choose with --quant: IQ4_XS, Q4_K_M, Q4_K_S, Q8_0"
    assert err.notes == [f"{n} (0.0 GB)" for n in (f"{SPLIT[0]}, 3 parts", "m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m.IQ4_XS.gguf")]


def test_none_of_that_name_lists_all() -> None:
    err = refusal(*GGUFS, quant="Q2_K")
    assert err.says == "org/m holds 0 GGUF models that --quant Q2_K fits"
    assert len(err.notes) == 4


@pytest.mark.parametrize("there", [["x.gguf"], ["x.GGUF", "mmproj-x.gguf"], ["d/x.gguf", "config.json"]])
def test_the_only_one_needs_no_name(there: list[str]) -> None:
    assert chosen(*there) == [n for n in there if n.lower().endswith("x.gguf") and "mmproj" not in n]


def test_a_set_with_a_part_missing() -> None:
    err = refusal(SPLIT[0], SPLIT[2])
    assert (err.code, err.says) == ("N709", f"pull incomplete: missing shard {SPLIT[1]}")


def test_quant_wins_over_safetensors_and_needs_a_gguf() -> None:
    assert chosen(*CONFIG, "model.safetensors", "m-Q8_0.gguf", quant="Q8_0") == ["m-Q8_0.gguf"]
    assert refusal(*CONFIG, "model.safetensors", quant="Q8_0").code == "N708"


def gguf(parts: int = 1, no: int = 0) -> bytes:
    """A GGUF file of one tensor, or a part of a set."""
    keys = [("general.architecture", "str", "llama")]
    split = [("split.no", "u16", no), ("split.count", "u16", parts), ("split.tensors.count", "i32", parts)] if parts > 1 else []
    return gguf_bytes([*keys, *split], [Raw(f"t{no}", (32,), 0, bytes(128))])


def test_pulling_a_set_gives_the_first_part(bench: Bench) -> None:
    bench.hub.files = {SPLIT[0].replace("03", "02"): gguf(2, 0), SPLIT[1].replace("03", "02"): gguf(2, 1), "m-Q4_0.gguf": gguf()}
    result = bench.pull("--quant", "Q8_0")
    assert (result.exit_code, result.stdout) == (0, "pulled org/tiny -> model/Q8_0/m-Q8_0-00001-of-00002.gguf\n"), result.stderr
    assert len(bench.hub.asked()) == 2


def test_a_second_quantisation_joins_the_first(bench: Bench) -> None:
    bench.hub.files = {"m-Q8_0.gguf": gguf(), "m-Q4_0.gguf": gguf() + b"\0"}
    assert bench.pull("--quant", "Q8_0").exit_code == 0
    assert bench.pull("--quant", "Q4_0").exit_code == 0
    assert bench.same(["m-Q8_0.gguf", "m-Q4_0.gguf"])
    bench.hub.log.clear()
    assert bench.pull("--quant", "Q8_0").stdout == "pulled org/tiny -> model/m-Q8_0.gguf\n"
    assert bench.hub.asked() == []


@pytest.mark.parametrize("text", [gguf()[:-1], b"<!doctype html>", b"", b"GGUF", bytes(600)])
def test_a_gguf_that_is_none(bench: Bench, text: bytes) -> None:
    bench.hub.sizes = bench.hub.linked = False
    bench.hub.files = {"m.gguf": text}
    result = bench.pull()
    assert result.exit_code == 4
    assert "pull incomplete: missing shard m.gguf\n" in result.stderr
    assert not (bench.here / "model").exists()


# --- patterns

def test_a_pattern_decides_alone() -> None:
    assert chosen(*GGUFS, include=("*Q4_K_S*",)) == ["m-Q4_K_S.gguf"]
    assert chosen(*CONFIG, INDEX, *SHARDS, include=("*.json", "*-00001-*")) == sorted([*CONFIG, INDEX, SHARDS[0]])


def test_a_pattern_never_means_a_pickle() -> None:
    assert chosen("a.bin", "b.json", "c.pt", "d.ckpt", "e.pth", include=("*",)) == ["b.json"]
    assert "never" in refusal("a.bin", "b.json", include=("*.bin",)).why


def test_patterns_that_help_nobody() -> None:
    assert refusal("b.json", include=("*.gguf",)).code == "N708"
    assert refusal("b.gguf", include=("*",), quant="Q8_0").code == "N708"


def test_pulling_by_pattern_checks_no_layout(bench: Bench) -> None:
    result = bench.pull("--include", "*.json")
    assert result.exit_code == 0
    assert bench.same(["config.json", "generation_config.json", "tokenizer.json", INDEX])
    assert "shards of the index are fetched only" in result.stderr


# --- the program

def program(bench: Bench, text: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An `hf` on PATH that writes its arguments down, then does what `text` says."""
    tools, store = bench.here.parent / "bin", bench.here.parent / "store"
    tools.mkdir()
    for name, data in bench.hub.files.items():
        (store / name).parent.mkdir(parents=True, exist_ok=True)
        (store / name).write_bytes(data)
    (tools / "hf").write_text(f'#!/bin/sh\necho "$@" >> "{tools}/calls"\nstore="{store}"\nfor to; do :; done\n{text}\n')
    (tools / "hf").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    return tools / "calls"


def test_the_program_is_called_with_repository_and_folder(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = program(bench, 'cp "$store"/*.json "$store"/model-*.safetensors "$to"', monkeypatch)
    result = bench.pull("--via", "hf")
    assert (result.exit_code, bench.same()) == (0, True), result.stderr
    words = calls.read_text().splitlines()
    assert all(w.startswith("download org/tiny ") and w.endswith(f"--local-dir {bench.here}/.model.uaii-pull") for w in words)
    assert all(any(f" {n} " in w for w in words) for n in MODEL)
    assert bench.hub.asked() == []


@pytest.mark.parametrize("text", ["exit 3", "true", 'cp "$store"/*.json "$to"'])
def test_a_program_that_does_not_deliver(bench: Bench, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program(bench, text, monkeypatch)
    result = bench.pull("--via", "hf")
    assert result.exit_code == 4
    assert "pull incomplete: missing" in result.stderr
    assert not (bench.here / "model").exists()


def test_no_program(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    result = bench.pull("--via", "hf", "--format", "json")
    assert (error(result)["code"], result.exit_code) == ("N712", 2)


def test_the_record_holds_what_was_verified(bench: Bench) -> None:
    bench.pull()
    done = json.loads((bench.here / "model" / ".uaii-pull.json").read_text())["done"]
    assert {n: d["size"] for n, d in done.items()} == {n: len(bench.hub.files[n]) for n in MODEL}
