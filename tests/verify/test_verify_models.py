"""Artifacts of tiny models pass: every family's own ops, every way of holding weights, every way of feeding a text."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from all_cases import families
from family_cases import llama, mixtral
from quantised_gguf import MIXED, stored, write_quantised, write_stored
from tiny_models import Case, write_folder

import uaii
from uaii.backends.ort.manifest import read_manifest
from uaii.compiler import Artifact, compile_model
from uaii.verification import Report, verify

# family, case, tokens: past every window, past the original length of dynamic rope and of longrope
MODELS = [
    ("llama", "f32", 24), ("llama", "dynamic-type", 60), ("llama", "yarn", 40), ("gpt2", "f32", 24),
    ("gemma2", "window-of-two", 24), ("gemma3", "f32", 40),
    ("mistral", "window", 40), ("phi3", "longrope", 60), ("phi3", "longrope-window", 40),
    ("deepseek_v3", "plain", 24), ("deepseek_v2", "lite", 24), ("gpt_oss", "f32", 24), ("qwen3_moe", "window", 60),
    ("mixtral", "f32", 24), ("falcon", "f32", 24), ("ministral3", "window", 40),
]


def case_of(family: str, name: str) -> Case:
    (found,) = [c for c in families()[family].CASES if c.name == name]
    return found


def passes(checkpoint: Path, out: Path, tokens: int, **options: Any) -> Report:
    compile_model(checkpoint, out, **options)
    report = verify(out, tokens=tokens, threads=1)
    assert report.error is None and report.verdict == "PASS" and report.exit_code == 0, str(report.error)
    assert report.weights is not None and report.weights.compared > 10
    assert (report.weights.differing, report.weights.unlike, report.weights.nodes) == ([], [], [])
    assert report.text is not None and len(report.text.ids) == tokens
    return report


@pytest.mark.parametrize(("family", "name", "tokens"), MODELS, ids=[f"{f}-{n}" for f, n, _ in MODELS])
def test_a_family_passes(family: str, name: str, tokens: int, tmp_path: Path) -> None:
    report = passes(write_folder(tmp_path / "model", case_of(family, name)), tmp_path / "out", tokens)
    assert [(run.run, run.activations) for run in report.runs] == [
        ("whole prompt", "f32"), ("two parts", "f32"), ("token by token", "f32")]
    assert all(run.difference < 1e-4 and run.same_best == 1 and not run.expected for run in report.runs)


def test_dynamic_rope_means_another_thing_in_each_way(tmp_path: Path) -> None:
    """The logits of the ways differ, and each is compared with its own meaning."""
    report = passes(write_folder(tmp_path / "model", case_of("llama", "dynamic-type")), tmp_path / "out", 60)
    whole, parts, steps = report.runs
    assert read_manifest(tmp_path / "out").whole_prompt and report.reference == "fold-rope"
    assert len({run.reference for run in (whole, parts, steps)}) > 1 and not [n for n in report.notes if "not passed" in n]


def test_what_a_short_text_does_not_show_is_said(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "model", case_of("phi3", "longrope-window"))
    notes = passes(source, tmp_path / "out", 5).notes
    assert [n for n in notes if "runner" not in n] == ["a window of 9 tokens is not passed by 5 tokens; --tokens 11 passes it",
                     "the switch of longrope's factors is not passed by 5 tokens; --tokens 34 passes it"]
    assert [n for n in verify(tmp_path / "out", tokens=34).notes if "runner" not in n] == []


def test_packed_weights_pass_in_f32_and_as_they_are(tmp_path: Path) -> None:
    source = write_quantised(tmp_path / "model.gguf", llama.PLAIN, MIXED)
    exact, parts, *packed = passes(source, tmp_path / "out", 24).runs
    assert (exact.activations, parts.activations, exact.expected) == ("f32", "f32", 0) and exact.difference < 1e-4
    assert [run.run for run in packed] == ["whole prompt", "two parts", "token by token"]
    for run in packed:
        assert run.activations == "int8" and 0.8 < run.noise / run.expected < 1.25 and run.kl > 1e-6
    (only, *_), out = passes(source, tmp_path / "f32", 24, weights="f32").runs, tmp_path / "f32"
    assert only.activations == "f32" and only.difference < 1e-4 and read_manifest(out).family == "llama"


WIDE = mixtral.PLAIN.set("wide", hidden_size=256, intermediate_size=256, head_dim=64, num_experts_per_tok=4)
REST = {"attn": "Q8_0", "token_embd": "Q8_0", "output.": "Q8_0", "ffn_gate_inp": "F32"}


@pytest.mark.parametrize(("kind", "first"), [("Q4_0", "f32"), ("Q4_K", "f32"), ("Q8_0", "f32, experts int8")])
def test_packed_experts_pass(kind: str, first: str, tmp_path: Path) -> None:
    """QMoE of 4 bits, branches, and QMoE of 8 bits, which rounds activations whatever it is told."""
    tensors = stored(WIDE, REST | {"exps": kind}, 0.25, mixtral.GGUF)
    report = passes(write_stored(tmp_path / "model.gguf", WIDE, tensors, mixtral.GGUF), tmp_path / "out", 24)
    assert [run.activations for run in report.runs] == [first, first, "int8", "int8", "int8"]
    assert all(run.expected > 0 and run.noise < 1.25 * run.expected for run in report.runs if run.activations != "f32")
    assert all(run.difference < 1e-4 for run in report.runs if run.activations == "f32")


def test_near_ties_of_experts_are_said(tmp_path: Path) -> None:
    case = WIDE.set("two", num_experts_per_tok=2)
    tensors = stored(case, REST | {"exps": "Q4_0"}, 0.25, mixtral.GGUF)
    report = passes(write_stored(tmp_path / "model.gguf", case, tensors, mixtral.GGUF), tmp_path / "out", 60)
    assert report.choices is not None and report.choices.count == 60 * case.config["num_hidden_layers"]
    (note,) = report.notes
    at = report.choices.tied["int8"]
    assert 0 < len(at) < report.choices.count and f"other experts in {len(at)} of 240 choices" in note


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_values_rounded_on_request_are_judged_from_there_on(weights: str, tmp_path: Path) -> None:
    """The judge's graph is the one with the rounded values; what they lost is said, not judged."""
    report = passes(write_folder(tmp_path / "model", llama.PLAIN), tmp_path / "out", 24, weights=weights)
    assert report.reference == "quantise-weights" and report.lost is not None and report.lost > 0.01
    assert report.runs[0].activations == "f32" and report.runs[0].difference < 1e-4


def test_every_pass_is_looked_at_on_request(tmp_path: Path) -> None:
    compile_model(write_folder(tmp_path / "model", case_of("gemma2", "window-of-two")), tmp_path / "out")
    looked = verify(tmp_path / "out", tokens=12, passes=True).passes
    assert [p.pass_ for p in looked][:3] == ["fold-rope", "fold-norm-offset", "enter-core"]
    assert len(looked) > 6 and all(p.ok and p.applied and p.difference < 1e-5 for p in looked)


def test_the_real_model_passes(smollm2_artifact: Artifact) -> None:
    report = uaii.verify(smollm2_artifact.folder, prompt="The capital of France is")
    assert report.verdict == "PASS" and report.text is not None and len(report.text.ids) == 5
    assert report.weights is not None and report.weights.compared == 423 and report.reference == "lower"
    assert [run.activations for run in report.runs] == ["f32", "f32", "int8", "int8", "int8"]
    assert all(run.difference < 1e-5 for run in report.runs[:2]) and all(run.kl < 0.05 for run in report.runs)
