"""`uaii bench`: that every figure is there and is what it says it is; never how large a time came out."""
from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import onnx
import pytest
import tiny_llama_for_cli as tiny
from click.testing import CliRunner, Result
from family_cases import llama
from onnx import TensorProto, helper, numpy_helper
from quantised_gguf import MIXED, write_quantised
from tiny_artifact import tiny_model, write_artifact

import uaii
from uaii.cli.bench import main, sizes
from uaii.cli.measuring import rounds, subject
from uaii.cli.measuring.peers import PEERS, Spec
from uaii.cli.measuring.report import ratios, summary
from uaii.cli.measuring.traffic import stored, traffic
from uaii.cli.measuring.worker import Bandwidth, Compile, Engine
from uaii.ir.diag import Diagnostic

SMALL = ("--quick", "--peer", "none", "--format", "json")
COUNT, RATE, TEXT = "a whole number", "a number above 0", "text"
ROW = {"kind": TEXT, "round": COUNT, "threads": COUNT, "peer": TEXT, "load_seconds": RATE, "start_bytes": COUNT,
       "loaded_bytes": COUNT, "peak_bytes": COUNT, "prefill": [{"tokens": COUNT, "seconds": RATE}],
       "decode": {"tokens": COUNT, "seconds": RATE, "median_step_seconds": RATE},
       "contexts": [{"context": COUNT, "fill_tokens": COUNT, "fill_seconds": RATE, "median_step_seconds": RATE}]}
LIMIT = {"read_bytes": COUNT, "share_of_limit": RATE}
SCHEMA = {
    "format": COUNT, "uaii": TEXT, "interrupted": bool, "warnings": [TEXT],
    "absent": [{"name": TEXT, "reason": TEXT, "hint": TEXT}],
    "model": {"name": TEXT, "family": TEXT, "layers": COUNT, "context_length": COUNT, "vocab_size": COUNT, "nodes": COUNT,
              "stored_bytes": COUNT, "read_per_token": COUNT, "cache_bytes_per_token": COUNT},
    "settings": {"threads": [COUNT], "prompts": [COUNT], "new": COUNT, "contexts": [COUNT], "rounds": COUNT,
                 "context_rounds": COUNT, "context_steps": COUNT},
    "compile": {"seconds": RATE, "peak_bytes": COUNT},
    "machine": {"cpu": TEXT, "cores": COUNT, "isa": [TEXT], "memory_bytes": COUNT, "system": TEXT, "python": TEXT,
                "versions": {"onnxruntime": TEXT, "onnx": TEXT, "numpy": TEXT}, "busy": float, "load_average": float,
                "stolen": float},
    "peers": [{"name": TEXT, "version": TEXT, "options": dict, "read_per_token": COUNT}],
    "summary": [{"threads": COUNT, "peer": TEXT, "rounds": COUNT, "load_seconds": RATE, "start_bytes": COUNT,
                 "loaded_bytes": COUNT, "peak_bytes": COUNT, "prefill": [{"tokens": COUNT, "tokens_per_second": RATE}],
                 "decode": {"tokens_per_second": RATE, **LIMIT},
                 "contexts": [{"context": COUNT, "step_seconds": RATE, **LIMIT, "fill_tokens": COUNT,
                               "fill_tokens_per_second": RATE}]}],
    "ratios": [{"threads": COUNT, "peer": TEXT, "decode": RATE, "load": RATE, "prefill": [{"tokens": COUNT, "ratio": RATE}],
                "contexts": [{"context": COUNT, "ratio": RATE}]}],
    "bandwidth": [{"round": COUNT, "threads": COUNT, "bytes_per_second": RATE}], "rows": [ROW],
}


def faults(found: Any, wanted: Any, at: str = "") -> Iterator[str]:
    """Where a record is not as the schema says."""
    if isinstance(wanted, dict):
        if not isinstance(found, dict) or set(found) != set(wanted):
            yield f"{at}: {found} has not the keys {sorted(wanted)}"
            return
        for k, v in wanted.items():
            yield from faults(found[k], v, f"{at}.{k}")
    elif isinstance(wanted, list):
        for i, one in enumerate(found):
            yield from faults(one, wanted[0], f"{at}[{i}]")
    elif wanted in (COUNT, RATE):
        fits = type(found) is int and found >= 0 if wanted == COUNT else type(found) is float and found > 0
        if not fits:
            yield f"{at}: {found!r} is not {wanted}"
    elif not isinstance(found, str if wanted == TEXT else wanted):
        yield f"{at}: {found!r}"


def bench(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(w) for w in words])


def recorded(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.stderr
    made: dict[str, Any] = json.loads(result.stdout)
    return made


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_artifact(tmp_path_factory.mktemp("bench") / "artifact", tiny_model())


def test_a_model_is_compiled_once_and_every_figure_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UAII_CACHE", str(tmp_path / "cache"))
    model = tiny.folder(tmp_path / "model")
    made = recorded(bench(model, *SMALL, "--contexts", "32,64", "--prompts", "16,40", "--out", tmp_path / "saved.json"))
    assert list(faults(made, SCHEMA | {"rows": [dict]})) == []
    plain, long = made["rows"]
    assert list(faults(plain, ROW)) == [] == list(faults(long, ROW | {"decode": type(None)}))
    assert made["settings"]["contexts"] == [32, 64] == [c["context"] for c in made["summary"][0]["contexts"]]
    assert [p["tokens"] for p in plain["prefill"]] == [16, 40] and plain["decode"]["tokens"] == 8
    assert [c["fill_tokens"] for c in long["contexts"]] == [32, 28], "the steps at 32 are part of the text"
    assert plain["start_bytes"] <= plain["loaded_bytes"] <= plain["peak_bytes"]
    assert (made["ratios"], made["absent"], made["interrupted"]) == ([], [], False)
    assert json.loads((tmp_path / "saved.json").read_text()) == made
    assert recorded(bench(model, *SMALL))["compile"] is None


@pytest.mark.parametrize("learned", [False, True], ids=["in place", "growing"])
def test_an_artifact_is_measured_as_it_is(learned: bool, tmp_path: Path) -> None:
    folder = write_artifact(tmp_path / "artifact", tiny_model(learned=learned))
    made = recorded(bench(folder, *SMALL, "--contexts", "32", "--rounds", "2"))
    assert made["compile"] is None and made["model"]["name"] == "artifact"
    assert [(r["kind"], r["round"]) for r in made["rows"]] == [("prompts", 0), ("prompts", 1), ("contexts", 0)]
    assert made["model"]["cache_bytes_per_token"] == 2 * 2 * 2 * 16 * 4
    (row,) = made["summary"]
    assert row["contexts"][0]["read_bytes"] == made["model"]["read_per_token"] + 32 * 2 * 2 * 2 * 16 * 4


def test_two_artifacts_side_by_side(artifact: Path, tmp_path: Path) -> None:
    other = write_artifact(tmp_path / "other", tiny_model(learned=True))
    made = recorded(bench(artifact, "--quick", "--format", "json", "--peer", "artifact", "--beside", other))
    assert [p["name"] for p in made["peers"]] == ["uaii", "artifact"] and made["ratios"][0]["decode"] > 0
    assert made["peers"][1]["read_per_token"] > 0
    strange = write_artifact(tmp_path / "strange", tiny_model(vocab=70))
    refused = bench(artifact, "--quick", "--beside", strange)
    assert refused.exit_code == 2 and "has 70 tokens, the artifact" in refused.stderr


def test_a_table_a_list_and_a_saved_record(artifact: Path, tmp_path: Path) -> None:
    saved = tmp_path / "r.json"
    text = bench(artifact, "--quick", "--peer", "none", "--quiet", "--out", saved)
    assert (text.exit_code, text.stderr) == (0, "")
    for word in ("machine", "GB/s at 1 thread", "prefill 16", "of the limit", "uaii"):
        assert word in text.stdout
    assert bench("--from", saved).stdout == text.stdout
    warned = json.loads(saved.read_text()) | {"warnings": ["the machine was busy"]}
    saved.write_text(json.dumps(warned))
    assert "the machine was busy" in bench("--from", saved).stdout
    assert "| threads | engine |" in bench("--from", saved, "--format", "markdown").stdout


def test_what_is_beyond_the_context_is_left_out_and_said(artifact: Path) -> None:
    result = bench(artifact, *SMALL, "--contexts", "32,64,1k", "--prompts", "16,512")
    made = recorded(result)
    assert [c["context"] for r in made["rows"] for c in r["contexts"]] == [32, 59], "at the limit of 64 the steps end it"
    assert "1024 tokens are left out" in result.stderr and "512 tokens are left out" in result.stderr


OTHERS = [n for n in PEERS if n != "uaii"]


def test_engines_that_are_not_there_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "find_spec", lambda name: None)
    monkeypatch.setattr(rounds, "child", pretend())
    out = uaii.compile(tiny.folder(tmp_path / "model"), tmp_path / "out").folder
    result = bench(out, "--quick", "--format", "json")
    absent = {one["name"]: one for one in recorded(result)["absent"]}
    assert list(absent) == OTHERS
    assert absent["transformers"]["reason"] == "not installed" and absent["transformers"]["hint"] == "pip install transformers"
    assert absent["genai-artifact"]["hint"] == "pip install onnxruntime-genai"
    assert absent["llama.cpp"]["hint"] == "--gguf FILE" and absent["genai"]["hint"].startswith("--genai DIR")
    for name in OTHERS:
        assert f"{name} is left out" in result.stderr
    named = bench(out, "--quick", "--peer", "transformers")
    assert named.exit_code == 2 and "U065" in named.stderr and "pip install transformers" in named.stderr


def pretend(interrupt_at: int = -1, failing: str = "") -> Any:
    """Stands in for child processes: a reply at once, Ctrl-C instead of one of them, an engine that fails."""
    calls = 0

    def child(job: Any, quiet: bool = True) -> dict[str, Any]:
        nonlocal calls
        calls += 1
        if calls - 1 == interrupt_at:
            raise KeyboardInterrupt
        if isinstance(job, Bandwidth):
            return {"bytes_per_second": 1e10}
        if job.peer == failing:
            raise rounds.Failed("it broke")
        return {"load_seconds": 0.5, "version": "1", "start_bytes": 1, "loaded_bytes": 2, "peak_bytes": 3, "contexts": [],
                "prefill": [{"tokens": n, "seconds": 0.1} for n in job.prompts],
                "decode": {"tokens": 8, "seconds": 0.1, "median_step_seconds": 0.01}}

    return child


def test_ctrl_c_keeps_the_rounds_so_far(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "child", pretend(interrupt_at=5))  # in the third round
    result = bench(artifact, *SMALL, "--rounds", "5")
    made = json.loads(result.stdout)
    assert result.exit_code == 130 and made["interrupted"] is True
    assert [r["round"] for r in made["rows"]] == [0, 1] and made["summary"][0]["rounds"] == 2
    monkeypatch.setattr(rounds, "child", pretend(interrupt_at=5))
    assert "interrupted after 2 rounds" in bench(artifact, "--quick", "--peer", "none", "--rounds", "5").stdout


def test_ctrl_c_before_anything_was_measured(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "child", pretend(interrupt_at=0))
    result = bench(artifact, *SMALL)
    assert (result.exit_code, result.stdout) == (130, "")


def test_engines_take_turns_and_one_that_fails_is_left_out(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "find_spec", lambda name: name)
    options = (artifact, "--quick", "--format", "json", "--rounds", "2", "--threads", "1,2", "--gguf", artifact / "model.onnx",
               "--genai", artifact)
    monkeypatch.setattr(rounds, "child", pretend())
    rows = recorded(bench(*options))["rows"]
    assert [r["peer"] for r in rows] == ["uaii", "llama.cpp", "genai"] * 4
    assert [r["threads"] for r in rows] == [1, 1, 1, 2, 2, 2] * 2
    monkeypatch.setattr(rounds, "child", pretend(failing="genai"))
    made = recorded(bench(*options))
    assert [r["peer"] for r in made["rows"]] == ["uaii", "llama.cpp"] * 4
    assert made["absent"][-1] == {"name": "genai", "reason": "it broke", "hint": ""}
    monkeypatch.setattr(rounds, "child", pretend(failing="uaii"))
    result = bench(*options)
    assert result.exit_code == 1 and "U064" in result.stderr


@pytest.mark.parametrize(("words", "code", "status"), [
    ((), "U060", 2), (("ARTIFACT", "--from", "x"), "U060", 2), (("ARTIFACT", "--threads", "0"), "U060", 2),
    (("ARTIFACT", "--prompts", "16,many"), "U060", 2), (("ARTIFACT", "--prompts", ""), "U060", 2),
    (("ARTIFACT", "--contexts", "1m"), "U060", 2), (("ARTIFACT", "--peer", "ollama"), "U060", 2),
    (("ARTIFACT", "--gguf", "nowhere.gguf"), "U060", 2), (("ARTIFACT", "--quick", "--new", "48"), "U060", 2),
    (("ARTIFACT", "--quick", "--contexts", "32,36"), "U060", 2),
    (("ARTIFACT", "--weights", "f32"), "U044", 2), (("--from", "nowhere.json"), "U061", 2), (("--from", "TEXT"), "U061", 4),
    (("--from", "OTHER"), "U061", 4), (("nowhere",), "U001", 2), (("ARTIFACT", "--quick", "--peer", "llama.cpp"), "U065", 2)])
def test_options_that_make_no_sense(words: tuple[str, ...], code: str, status: int, artifact: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no")
    (tmp_path / "other").write_text('{"format": 0, "summary": []}')
    names = {"ARTIFACT": artifact, "TEXT": tmp_path / "text", "OTHER": tmp_path / "other"}
    result = bench(*(names.get(w, w) for w in words), "--format", "json")
    assert result.exit_code == status, result.stderr
    assert json.loads(result.stdout)["error"]["code"] == code and f"error[{code}]" in result.stderr


def test_places_that_cannot_be_written(artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "child", pretend())
    result = bench(artifact, *SMALL, "--out", tmp_path / "no" / "r.json")
    assert result.exit_code == 2 and "U062" in result.stderr


def test_a_picture_needs_matplotlib_and_says_so_before_measuring(artifact: Path, tmp_path: Path,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr(rounds, "child", None)
    result = bench(artifact, *SMALL, "--plot", tmp_path / "p.png")
    assert result.exit_code == 3 and "U063" in result.stderr and 'pip install "uaii[plot]"' in result.stderr


def test_a_picture_shows_what_was_measured(artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, roof, decode, prefill = MagicMock(), MagicMock(), MagicMock(), MagicMock()
    figure = module.Figure.return_value
    figure.subplots.return_value = roof, decode, prefill
    monkeypatch.setitem(sys.modules, "matplotlib.figure", module)
    made = recorded(bench(artifact, *SMALL, "--contexts", "32,40", "--plot", tmp_path / "p.png"))
    (row,) = made["summary"]
    assert figure.savefig.call_args.args == (tmp_path / "p.png",)
    assert decode.plot.call_args.args[:2] == ([32, 40], [1e3 * c["step_seconds"] for c in row["contexts"]])
    assert prefill.plot.call_args.args[1] == [c["fill_tokens_per_second"] for c in row["contexts"]]
    assert ([row["decode"]["read_bytes"] / 1e6], [row["decode"]["tokens_per_second"]]) == roof.plot.call_args_list[-1].args[:2]
    figure.savefig.side_effect = ValueError("no such form")
    assert "U062" in bench(artifact, *SMALL, "--plot", tmp_path / "p.xyz").stderr


def test_counts_are_read() -> None:
    assert sizes("contexts", "4k, 1K,16") == (16, 1024, 4096) and sizes("contexts", "") == ()


def row(kind: str, round_: int, peer: str, seconds: float) -> dict[str, Any]:
    return {"kind": kind, "round": round_, "threads": 1, "peer": peer, "load_seconds": seconds, "start_bytes": 1,
            "loaded_bytes": 2, "peak_bytes": 3, "prefill": [{"tokens": 16, "seconds": seconds}] if kind == "prompts" else [],
            "decode": {"tokens": 10, "seconds": 10 * seconds, "median_step_seconds": seconds} if kind == "prompts" else None,
            "contexts": [{"context": 100, "fill_tokens": 100, "fill_seconds": seconds, "median_step_seconds": seconds}]
            if kind == "contexts" else []}


def test_medians_ratios_and_shares() -> None:
    times = {"uaii": [0.01, 0.02, 0.09], "llama.cpp": [0.03, 0.08, 0.045]}
    rows = [row("prompts", i, peer, s) for peer, ss in times.items() for i, s in enumerate(ss)]
    rows += [row("contexts", 0, peer, 0.05) for peer in times]
    speeds = [{"round": i, "threads": 1, "bytes_per_second": s} for i, s in enumerate([1e6, 9e6, 2e6])]
    ours, theirs = summary(rows, speeds, {"uaii": 10_000, "llama.cpp": None}, lambda peer, n: 100 * n, [16])
    assert ours["decode"] == {"tokens_per_second": 1 / 0.02, "read_bytes": 10_000 + 100 * 21,
                              "share_of_limit": pytest.approx(12_100 / 0.02 / 2e6)}
    assert ours["prefill"] == [{"tokens": 16, "tokens_per_second": 16 / 0.02}] and ours["rounds"] == 3
    assert ours["contexts"][0]["share_of_limit"] == pytest.approx(20_000 / 0.05 / 2e6)
    assert theirs["decode"] == {"tokens_per_second": 1 / 0.045, "read_bytes": None, "share_of_limit": None}
    (against,) = ratios(rows)
    want = statistics.median([0.03 / 0.01, 0.08 / 0.02, 0.045 / 0.09])  # of the pairs, not 0.045 / 0.02
    assert against["decode"] == pytest.approx(want) and against["prefill"] == [{"tokens": 16, "ratio": pytest.approx(want)}]
    assert against["contexts"] == [{"context": 100, "ratio": 1.0}]


def test_bytes_a_step_reads(tmp_path: Path) -> None:
    """A table by its row, one weight read twice once, experts by their share, a window that ends the cache's growth."""
    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(np.zeros(shape, np.float32), name)

    nodes = [helper.make_node("Gather", ["table", "ids"], ["x"]), helper.make_node("MatMul", ["x", "w"], ["y"]),
             helper.make_node("MatMul", ["y", "w"], ["z"]), helper.make_node("MoE", ["z", "r", "fc1"], ["m"], k=2),
             helper.make_node("GroupQueryAttention", ["m", "", "", "past_key_values.0.key"], ["o"], local_window_size=10),
             helper.make_node("GroupQueryAttention", ["o", "", "", "past_key_values.1.key"], ["p"], local_window_size=-1)]
    past = [helper.make_tensor_value_info(f"past_key_values.{i}.key", TensorProto.FLOAT16, ["B", 3, "P", 8]) for i in range(2)]
    made = helper.make_graph(nodes, "g", past, [], [weight("table", 50, 4), weight("w", 4, 4), weight("fc1", 8, 5, 7)])
    onnx.save(helper.make_model(made), tmp_path / "g.onnx")
    found = traffic(tmp_path / "g.onnx")
    assert found.weights == 4 * (4 + 16 + 2 * 5 * 7) and found.nodes == 6
    assert found.cache(8) == 2 * 8 * 24 * 2 and found.cache(100) == (10 + 100) * 24 * 2
    assert found.cache(100, 4) == 2 * found.cache(100)


def test_an_artifacts_bytes_are_those_of_its_graph(tmp_path: Path) -> None:
    """The manifest counts typed weights, this counts ONNX initializers: they differ by constants of a few bytes."""
    file = write_quantised(tmp_path / "m.gguf", llama.PLAIN.set("q", hidden_size=64, intermediate_size=96), MIXED)
    out = uaii.compile(file, tmp_path / "out").folder
    said = json.loads((out / "uaii.json").read_text())["pipeline"]
    found = traffic(out / "model.onnx").weights
    assert abs(found - said[-1]["read_per_token"]) < 0.01 * found
    assert stored(file, ()) == said[0]["read_per_token"]
    assert stored(tmp_path / "out", ()) is None
    half = tiny.folder(tmp_path / "half", tiny.CASE.but(dtype="F16"))
    assert stored(half, (), as_f32=True) == 2 * (stored(half, ()) or 0)


def test_a_child_measures_itself_and_not_its_parent(artifact: Path) -> None:
    held = np.ones(60 << 20)  # 480 MiB here, none of it there
    reply = rounds.child(Engine("uaii", Spec(str(artifact), 1, 32), tuple(range(16)), (16,), 2))
    assert 0 < reply["start_bytes"] <= reply["peak_bytes"] < held.nbytes


def test_what_a_child_raises_comes_back(tmp_path: Path) -> None:
    with pytest.raises(Diagnostic, match="U001"):
        rounds.child(Compile(tmp_path / "nothing", {"target": "cpu", "weights": "auto", "accept": (), "context": None}, True))
    with pytest.raises(rounds.Failed, match="KeyError"):
        rounds.child(Engine("nobody", Spec(".", 1, 1), (1,)))
