"""`uaii inspect` tells what a checkpoint is from its headers, and says ok only when a compile succeeds."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_llama_for_cli as tiny
from all_cases import families
from click.testing import CliRunner, Result
from tiny_models import write_config, write_folder

import uaii
from uaii.cli.inspect import main
from uaii.compiler import compile_model
from uaii.inspection import GATES, Report, inspect
from uaii.ir.diag import Diagnostic


def run(path: Path, *options: str) -> Result:
    return CliRunner().invoke(main, [str(path), *options])


def lines(path: Path, *options: str) -> list[str]:
    return run(path, *options).stdout.splitlines()


def fact(path: Path, name: str, *options: str) -> str:
    (line,) = [x for x in lines(path, *options) if x.startswith(f"{name}=")]
    return line.removeprefix(f"{name}=")


def states(report: Report) -> dict[str, str]:
    assert tuple(report.gates) == GATES
    return {name: gate.state for name, gate in report.gates.items()}


def compiled(path: Path, out: Path, **options: Any) -> Diagnostic | None:
    try:
        compile_model(path, out, **options)
    except Diagnostic as err:
        return err
    return None


# --- agreement with compile

@pytest.mark.parametrize("name", tiny.GOOD)
def test_ok_means_that_a_compile_succeeds(name: str, tmp_path: Path) -> None:
    path = tiny.GOOD[name](tmp_path / "model")
    report, result = inspect(path), run(path)
    assert (report.ok, report.blockers, report.exit_code, result.exit_code) == (True, [], 0, 0)
    assert result.stdout.splitlines()[-1] == "status: ok"
    assert "blocked" not in result.stdout
    assert compiled(path, tmp_path / "out") is None


@pytest.mark.parametrize("name", tiny.BAD)
def test_the_first_blocker_is_the_error_of_a_compile(name: str, tmp_path: Path) -> None:
    path = tiny.BAD[name](tmp_path / "model")
    error = compiled(path, tmp_path / "out")
    assert error is not None
    report, result = inspect(path), run(path)
    first = report.blockers[0]
    assert (first.code, first.says, first.exit_code) == (error.code, error.says, error.exit_code)
    blocked = [x for x in result.stdout.splitlines() if x.startswith("blocked: ")]
    assert blocked == [f"blocked: {b.says}" for b in report.blockers]
    assert result.exit_code == report.exit_code == error.exit_code
    assert "status: ok" not in result.stdout
    assert result.stdout.startswith("family=")


def test_what_the_target_cannot_run_is_found_without_weights(tmp_path: Path) -> None:
    path = tiny.folder(tmp_path / "model", tiny.CASE.set("narrow", head_dim=12))
    error = compiled(path, tmp_path / "out")
    assert error is not None and error.code == "C401"
    assert [b.says for b in inspect(path).blockers] == [error.says]


@pytest.mark.parametrize(("options", "code"), [(["--target", "toaster"], "U021"), (["--weights", "q9"], "U020"),
                                               (["--context", "100000"], "U022")])
def test_wrong_options_are_usage_errors_as_in_compile(options: list[str], code: str, tmp_path: Path) -> None:
    result = run(tiny.folder(tmp_path / "model"), *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"error[{code}]" in result.stderr


def test_an_accepted_key_no_longer_blocks(tmp_path: Path) -> None:
    path = tiny.folder(tmp_path / "model", value_residual_scale=0.5)
    assert run(path).exit_code == 3
    assert run(path, "--accept-key", "value_residual_scale").exit_code == 0


def test_every_blocker_is_listed_and_none_twice(tmp_path: Path) -> None:
    both = inspect(tiny.gguf_file(tmp_path / "a" / "x.gguf", "foo"))
    assert [b.code for b in both.blockers] == ["F121"]
    cut = inspect(tiny.BAD["gguf-cut-architecture"](tmp_path / "b"))
    assert [b.code for b in cut.blockers] == ["G311", "F121"]
    gptq = inspect(tiny.BAD["gptq-config"](tmp_path / "c"))
    assert [b.code for b in gptq.blockers] == ["H330"]
    other = inspect(tiny.folder(tmp_path / "d", quantization_config={"quant_method": "gptq"}, value_residual_scale=0.5))
    assert [b.code for b in other.blockers] == ["H330", "F101"]
    eight = inspect(tiny.BAD["float8"](tmp_path / "e"))
    assert [b.code for b in eight.blockers] == ["H309"]
    bare = inspect(tiny.config_only(tmp_path / "f", hidden_act="foo"))
    assert [b.code for b in bare.blockers] == ["H320", "F110"]


@pytest.mark.parametrize("family", [f for f, module in families().items() if module.CASES])
def test_every_family_is_known_from_its_folder_and_from_its_config_alone(family: str, tmp_path: Path) -> None:
    """The config alone plans the very sizes that the weights compile to."""
    case = families()[family].CASES[0]
    whole = inspect(write_folder(tmp_path / "whole", case))
    assert (whole.ok, whole.facts["layers"], whole.facts["vocab"]) == (True, *sizes(case.config))
    assert whole.facts["artifact_bytes"] > 0 and whole.facts["kv_bytes_per_token"] > 0
    (tmp_path / "bare").mkdir()
    write_config(tmp_path / "bare", case.config)
    bare = inspect(tmp_path / "bare")
    assert [b.code for b in bare.blockers] == ["H320"]
    told = ("layers", "heads", "kv_heads", "head_dim", "hidden", "vocab", "context", "rope", "kv_bytes_per_token",
            "artifact_bytes", "ram_to_load_bytes", "read_bytes_per_token")
    assert {k: bare.facts[k] for k in told} == {k: whole.facts[k] for k in told}
    assert bare.family == whole.family == family


def sizes(config: dict[str, Any]) -> tuple[int, int]:
    """Layers and vocabulary, however the family spells the first."""
    return config.get("num_hidden_layers") or config["n_layer"], config["vocab_size"]


# --- the four gates

def test_gates_shut_one_at_a_time(tmp_path: Path) -> None:
    def shut(path: Path) -> list[str]:
        return [g for g, state in states(inspect(path)).items() if state == "blocked"]

    assert shut(tiny.folder(tmp_path / "good")) == []
    assert shut(tiny.folder(tmp_path / "arch", model_type="mamba", architectures=["MambaForCausalLM"])) == ["architecture"]
    assert shut(tiny.BAD["missing-tensor"](tmp_path / "layout")) == ["layout"]
    assert shut(tiny.BAD["float8"](tmp_path / "weights")) == ["weights"]
    assert shut(tiny.BAD["broken-tokenizer"](tmp_path / "tokenizer")) == ["tokenizer"]


def test_a_gate_behind_a_shut_one_is_not_called_ok(tmp_path: Path) -> None:
    assert states(inspect(tiny.BAD["architecture"](tmp_path / "a")))["layout"] == "not checked"
    assert states(inspect(tiny.BAD["gptq-config"](tmp_path / "b")))["layout"] == "not checked"
    assert states(inspect(tiny.config_only(tmp_path / "c"))) == {
        "architecture": "ok", "layout": "not checked", "weights": "blocked", "tokenizer": "token ids only"}
    adapter = states(inspect(tiny.BAD["adapter"](tmp_path / "d")))
    assert adapter == {"architecture": "not checked", "layout": "not checked", "weights": "blocked", "tokenizer": "not checked"}


def test_a_cut_file_still_has_its_layout_checked(tmp_path: Path) -> None:
    cut = tiny.cut(tiny.gguf_file(tmp_path / "x.gguf"), 1000)
    assert states(inspect(cut)) == {"architecture": "ok", "layout": "ok", "weights": "blocked", "tokenizer": "ok"}
    assert (fact(cut, "layers"), fact(cut, "hidden"), fact(cut, "vocab")) == ("2", "64", "288")
    broken = inspect(tiny.cut(tiny.gguf_file(tmp_path / "y.gguf", tensors=tiny.gguf_without("ffn_up")), 1000))
    assert [b.code for b in broken.blockers] == ["G311", "T201"]


def test_without_a_tokenizer_the_model_compiles_and_text_does_not(tmp_path: Path) -> None:
    out = lines(tiny.GOOD["no-tokenizer"](tmp_path / "model"))
    assert "tokenizer: none (token ids only)" in out
    assert any(x.startswith("note: no tokenizer: no HF tokenizer found in ") for x in out)
    assert out[-1] == "status: ok"


@pytest.mark.parametrize(("name", "line"), [
    ("folder", "weights: F32 (ok)"), ("bf16", "weights: BF16 x16, F32 x5 (ok)"), ("float8", "weights: F8_E4M3 (blocked)")])
def test_weights_line(name: str, line: str, tmp_path: Path) -> None:
    assert line in lines((tiny.GOOD | tiny.BAD)[name](tmp_path / "model"))


def test_one_dtype_stands_alone(tmp_path: Path) -> None:
    assert "weights: BF16 (ok)" in lines(tiny.folder(tmp_path / "model", tiny.CASE.but(dtype="BF16")))


def test_quantised_folders_are_named_as_support_greps_them(tmp_path: Path) -> None:
    assert any(x.startswith("blocked: quantized safetensors: gptq") for x in lines(tiny.BAD["gptq-config"](tmp_path / "model")))


# --- facts

FACTS = {"family": "llama", "layers": "2", "heads": "4", "kv_heads": "2", "head_dim": "16", "hidden": "64", "ffn": "96",
         "vocab": "288", "context": "256", "moe": "no", "sliding_window": "none", "tied_embeddings": "no"}


@pytest.mark.parametrize("name", ["folder", "gguf"])
def test_sizes_come_from_either_kind_of_file(name: str, tmp_path: Path) -> None:
    path = tiny.GOOD[name](tmp_path / "model")
    assert {k: fact(path, k) for k in FACTS} == FACTS
    assert fact(path, "format") == ("hf" if name == "folder" else "gguf")
    assert fact(path, "architecture") == ("LlamaForCausalLM" if name == "folder" else "llama")
    assert fact(path, "parameters") == str(sum(x.size for x in tiny.CASE.tensors().values()))


def test_a_config_alone_gives_sizes_and_rotation(tmp_path: Path) -> None:
    path = tiny.config_only(tmp_path / "model", rope_theta=5e5)
    sizes = {k: v for k, v in FACTS.items() if k not in ("moe", "sliding_window", "tied_embeddings")}
    assert {k: fact(path, k) for k in sizes} == sizes
    assert fact(path, "rope_base") == "500000.0 (config.json: rope_theta = 500000.0)"
    assert fact(path, "kv_bytes_per_token") == "512 (512 B)"
    assert fact(path, "artifact_bytes") == fact(tiny.folder(tmp_path / "whole", rope_theta=5e5), "artifact_bytes")


@pytest.mark.parametrize(("name", "keys"), [
    ("quantised", {"quantization_config": {"quant_method": "gptq"}}), ("unknown", {"value_residual_scale": 0.5})])
def test_a_plan_takes_a_quantisation_for_none_and_no_unknown_key(name: str, keys: dict[str, Any], tmp_path: Path) -> None:
    planned = fact(tiny.config_only(tmp_path / "bare", **keys), "artifact_bytes")
    assert planned == (fact(tiny.folder(tmp_path / "whole"), "artifact_bytes") if name == "quantised" else "unknown")


def test_head_dim_is_computed_when_no_key_states_it(tmp_path: Path) -> None:
    assert fact(tiny.folder(tmp_path / "model", tiny.CASE.set("more", num_attention_heads=8)), "head_dim") == "8"


@pytest.mark.parametrize(("keys", "kind", "base"), [
    ({}, "default", "10000.0 (config.json: rope_theta = 10000.0)"),
    ({"rope_theta": ..., "rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}, "default",
     "7.0 (config.json: rope_parameters"),
    ({"rope_scaling": {"type": "linear", "factor": 4.0}}, "linear, factor 4.0", "10000.0 ("),
    ({"rope_scaling": {"rope_type": "foo"}}, "foo", "10000.0 (")])
def test_rotation_and_the_key_it_came_from(keys: dict[str, Any], kind: str, base: str, tmp_path: Path) -> None:
    path = tiny.folder(tmp_path / "model", **keys)
    assert fact(path, "rope") == kind
    assert fact(path, "rope_base").startswith(base)


def test_tied_embeddings_are_what_the_graph_does(tmp_path: Path) -> None:
    assert fact(tiny.folder(tmp_path / "a", tie_word_embeddings=True, tensors=tiny.without("lm_head.weight")),
                "tied_embeddings") == "yes"
    assert fact(tiny.folder(tmp_path / "b", tie_word_embeddings=True), "tied_embeddings") == "no"


def test_bytes_are_those_of_the_artifact(tmp_path: Path) -> None:
    path = tiny.folder(tmp_path / "model", tiny.CASE.but(dtype="BF16"))
    facts = inspect(path).facts
    made = compile_model(path, tmp_path / "out")
    written = made.summary["bytes_out"]
    assert facts["artifact_bytes"] <= written < facts["artifact_bytes"] + 64 * len(made.manifest["weights"])
    assert facts["weight_bytes"] == 2 * facts["parameters"]
    assert facts["kv_bytes_per_token"] == 2 * 2 * 2 * 16 * 4  # layers, key and value, heads, features, f32


def test_an_unknown_family_states_only_what_the_file_states(tmp_path: Path) -> None:
    path = tiny.folder(tmp_path / "model", model_type="foo", architectures=["FooForCausalLM"], num_attention_heads=...,
                       max_position_embeddings=..., num_local_experts=8, sliding_window=128)
    got = {k: fact(path, k) for k in ("family", "layers", "heads", "context", "moe", "sliding_window")}
    assert got == {"family": "unknown", "layers": "2", "heads": "unknown", "context": "unknown",
                   "moe": "num_local_experts=8", "sliding_window": "128 tokens"}


def test_a_family_is_named_even_when_it_is_refused(tmp_path: Path) -> None:
    path = tiny.BAD["encoder-decoder"](tmp_path / "model")
    assert (fact(path, "family"), run(path).exit_code) == ("llama", 3)


def test_an_unknown_gguf_architecture_lists_the_known_ones(tmp_path: Path) -> None:
    out = run(tiny.BAD["gguf-architecture"](tmp_path / "model")).stdout
    assert "blocked: unsupported GGUF architecture: foo\n" in out
    assert "known architectures: " in out and "llama" in out.split("known architectures: ")[1]


def test_tokenizer_facts(tmp_path: Path) -> None:
    path = tiny.folder(tmp_path / "model")
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    assert fact(path, "tokenizer") == "BPE of 270 tokens"
    assert fact(path, "chat_template") == "yes"
    assert "tokenizer: BPE (ok)" in lines(path)


# --- forms

def test_json_says_the_same(tmp_path: Path) -> None:
    good, bad = tiny.folder(tmp_path / "good"), tiny.BAD["rope-kind"](tmp_path / "bad")
    record = json.loads(run(good, "--format", "json").stdout)
    assert (record["family"], record["status"], record["blocked"], record["layers"]) == ("llama", "ok", [], 2)
    assert {k: g["state"] for k, g in record["gates"].items()} == dict.fromkeys(GATES, "ok")
    result = run(bad, "--format", "json")
    blocked = json.loads(result.stdout)["blocked"]
    assert [(b["code"], b["says"], b["exit_code"]) for b in blocked] == [("F111", "unsupported rope_scaling.type=foo", 3)]
    assert result.exit_code == 3


def test_the_api_is_the_same_report(tmp_path: Path) -> None:
    report = uaii.inspect(tiny.folder(tmp_path / "model"))
    assert isinstance(report, Report) and report.record()["status"] == "ok"


def test_no_tensor_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("a tensor was read")

    paths = [tiny.folder(tmp_path / "model"), tiny.gguf_file(tmp_path / "x.gguf")]
    monkeypatch.setattr("uaii.frontend.blob.read", refuse)
    assert [inspect(p).ok for p in paths] == [True, True]


def test_nothing_there_and_an_artifact_are_usage_errors(tmp_path: Path) -> None:
    compile_model(tiny.folder(tmp_path / "model"), tmp_path / "out")
    assert [run(tmp_path / x).exit_code for x in ("nowhere", "out")] == [2, 2]
