"""What is wrong in an artifact is caught, and where it went wrong is named."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edited_artifact import initializer, with_attribute, with_bytes
from family_cases import gemma2, llama
from quantised_gguf import MIXED, write_quantised
from tiny_models import Case, write_folder

from uaii import measure, verification
from uaii.backends.onnx.emit import RULES, Emit
from uaii.compiler import compile_model
from uaii.distances import Distance, distance
from uaii.ir import ops
from uaii.ir.diag import Malformed, Unsupported, Usage
from uaii.passes.base import Answer, Rewrite
from uaii.passes.fold_norm_offset import FoldNormOffset
from uaii.passes.fuse_skip_norm import FuseSkipNorm
from uaii.verification import Report, verify
from uaii.ways import Meaning

WINDOW = gemma2.PLAIN.set("window", sliding_window=8)


def compiled(tmp_path: Path, case: Case = llama.PLAIN, **options: Any) -> Path:
    compile_model(write_folder(tmp_path / "model", case), tmp_path / "out", **options)
    return tmp_path / "out"


def fails(folder: Path, **options: Any) -> Report:
    report = verify(folder, **{"tokens": 24, "threads": 1, **options})
    assert report.verdict == "FAIL" and report.error is not None and report.error.code == "R101" and report.exit_code == 1
    return report


def notes(report: Report) -> str:
    assert report.error is not None
    return "\n".join(report.error.notes)


# --- the artifact was changed

def test_a_flipped_byte_is_found_by_its_weight_and_by_the_logits(tmp_path: Path) -> None:
    folder = compiled(tmp_path)
    at = initializer(folder, "weights/2.ffn.down")
    report = fails(with_bytes(folder, at["offset"] + 4 * 100 + 3, lambda byte: byte ^ 0x40))  # of the exponent
    assert report.weights is not None and report.weights.differing == ["2.ffn.down"] and not any(run.ok for run in report.runs)
    assert "1 of 27 weights are other bytes than the checkpoint's: 2.ffn.down" in notes(report)
    assert "the weights in the artifact are not the checkpoint's" in notes(report)
    assert len(report.passes) > 5 and all(p.ok for p in report.passes)


def test_a_manifest_of_other_windows_is_seen_once_keys_are_left_out(tmp_path: Path) -> None:
    folder = compiled(tmp_path, WINDOW)
    said = json.loads((folder / "uaii.json").read_text("utf-8"))
    assert said["kv_windows"] == [8, 0, 8, 0]
    (folder / "uaii.json").write_text(json.dumps(said | {"kv_windows": [0, 8, 0, 8]}), "utf-8")
    short = verify(folder, tokens=24, threads=1)
    assert short.verdict == "PASS"
    assert "the length from which on the runner leaves keys out is not passed by 24 tokens; --tokens 74 passes it" in short.notes
    fails(folder, tokens=74)


def test_a_bit_that_no_logit_shows_fails_too(tmp_path: Path) -> None:
    folder = compiled(tmp_path)
    report = fails(with_bytes(folder, initializer(folder, "weights/norm")["offset"], lambda byte: byte ^ 1))
    assert all(run.ok for run in report.runs)
    assert report.weights is not None and report.weights.differing == ["norm"]


def test_a_packed_weight_of_other_bytes(tmp_path: Path) -> None:
    compile_model(write_quantised(tmp_path / "model.gguf", llama.PLAIN, MIXED), tmp_path / "out")
    at = initializer(tmp_path / "out", "weights/1.attn.qkv.quants")
    report = fails(with_bytes(tmp_path / "out", at["offset"], lambda byte: byte ^ 0xF0))
    assert report.weights is not None and report.weights.differing == ["1.attn.qkv.quants"]
    assert not report.runs[0].ok and report.runs[0].activations == "f32"


@pytest.mark.parametrize(("case", "kind", "attribute", "value"), [
    (llama.PLAIN, "SkipSimplifiedLayerNormalization", "epsilon", 0.05), (WINDOW, "GroupQueryAttention", "local_window_size", -1),
    (WINDOW, "GroupQueryAttention", "softcap", 0.0), (llama.PLAIN, "GroupQueryAttention", "scale", 0.2)])
def test_a_changed_node_is_named_with_its_attribute(case: Case, kind: str, attribute: str, value: Any, tmp_path: Path) -> None:
    folder = compiled(tmp_path, case)
    changed = with_attribute(folder, kind, attribute, value)
    report = fails(folder)
    assert report.weights is not None and report.weights.differing == []
    named = [text for text in report.weights.nodes if attribute in text]
    assert named and all(any(text.startswith(f"node {name}: ") for name in changed) for text in named)
    assert "model.onnx is not what its last graph is written as" in notes(report) and f"{attribute} = " in notes(report)


def test_logits_that_are_not_numbers_are_infinitely_far(tmp_path: Path) -> None:
    folder = compiled(tmp_path)
    at = initializer(folder, "weights/norm")["offset"]
    for place, byte in ((2, 0xC0), (3, 0x7F)):
        with_bytes(folder, at + place, lambda _, byte=byte: byte)
    report = fails(folder)
    record = json.loads(json.dumps(report.record(), allow_nan=False))
    assert all(run.difference == np.inf and not run.ok for run in report.runs) and record["runs"][0]["difference"] is None


# --- the compiler was wrong

def test_a_wrong_pass_is_named_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rule(self: FuseSkipNorm, op: Any, rw: Rewrite, right: Any = FuseSkipNorm.rule) -> Answer:
        answer: Answer = right(self, op, rw)
        if isinstance(answer, tuple):
            object.__setattr__(answer[0].op, "eps", 0.1)
        return answer

    monkeypatch.setattr(FuseSkipNorm, "rule", rule)
    report = fails(compiled(tmp_path))
    assert report.passes[-1].pass_ == "fuse-skip-norm" and not report.passes[-1].ok and all(p.ok for p in report.passes[:-1])
    assert "the first wrong pass is fuse-skip-norm: after it" in notes(report)
    assert report.weights is not None and report.weights.nodes == [] == report.weights.differing
    every = fails(tmp_path / "out", passes=True).passes
    assert len(every) > len(report.passes) and not any(p.ok for p in every[len(report.passes):])


def test_a_wrong_recipe_is_the_pass_that_made_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from uaii.passes import fold_norm_offset

    def wrong(op: str, *args: Any, right: Any = fold_norm_offset.make) -> Any:
        return right(op, *args) if op != "add" else right(op, args[0], 2 * args[1])

    monkeypatch.setattr(fold_norm_offset, "make", wrong)
    report = fails(compiled(tmp_path, WINDOW))
    assert report.passes[-1].pass_ == FoldNormOffset.name
    assert report.weights is not None and report.weights.differing == []  # the artifact holds what the wrong recipe says


def test_a_wrong_emission_is_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def emit(op: ops.RmsNorm, e: Emit) -> None:
        op.need(op.offset == 0.0, "")
        e.node("SimplifiedLayerNormalization", op.x, op.weight, axis=-1, epsilon=op.eps + 0.05)

    compile_model(write_folder(tmp_path / "warm", llama.PLAIN), tmp_path / "rules")  # loads the rules
    monkeypatch.setitem(RULES, ops.RmsNorm, emit)
    report = fails(compiled(tmp_path))
    assert report.passes and all(p.ok for p in report.passes)
    assert "every pass keeps the meaning: the emission is wrong, or onnxruntime is" in notes(report)


def test_a_wrong_int8_kernel_is_told_from_rounding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_model(write_quantised(tmp_path / "model.gguf", llama.PLAIN, MIXED), tmp_path / "out")

    def off(session: Any, ids: Any, calls: Any, tell: Any, right: Any = verification.answers) -> Any:
        logits = right(session, ids, calls, tell)
        return logits if session.load_seconds == 0 else logits * 0.6  # a session of the exact kind has no time of its own

    monkeypatch.setattr(verification, "answers", off)
    report = fails(tmp_path / "out")
    assert [run.ok for run in report.runs] == [True, True, False, False, False]
    assert "with f32 activations the artifact is right, so the kernels for int8 activations are not" in notes(report)


# --- the checkpoint

def test_weights_of_another_seed_under_the_same_header(tmp_path: Path) -> None:
    folder = compiled(tmp_path)
    write_folder(tmp_path / "model", llama.PLAIN.but(seed=1))
    report = fails(folder)
    assert report.source["fingerprint"] == "as recorded"
    assert report.weights is not None and len(report.weights.differing) == report.weights.compared == 27
    assert "27 of 27 weights are other bytes than the checkpoint's" in notes(report) and "and 23 more" in notes(report)


def test_a_checkpoint_that_is_not_finite_itself(tmp_path: Path) -> None:
    tensors = llama.PLAIN.tensors()
    tensors["model.norm.weight"][3] = np.nan
    compile_model(write_folder(tmp_path / "model", llama.PLAIN, tensors), tmp_path / "out")
    with pytest.raises(Malformed) as err:
        verify(tmp_path / "out")
    assert err.value.code == "R103"


def test_a_checkpoint_that_does_not_fit_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = compiled(tmp_path)
    monkeypatch.setattr(measure, "available_bytes", lambda: (20_000, 20_000))
    with pytest.raises(Unsupported, match="which exceeds the memory of this process") as err:
        verify(folder)
    assert err.value.code == "C403"


# --- the text

@pytest.mark.parametrize(("options", "code"), [
    ({"token_ids": [1, 199]}, "S611"), ({"token_ids": [-1]}, "S611"), ({"token_ids": []}, "S613"), ({"tokens": 257}, "S612"),
    ({"prompt": "Hello"}, "K520"), ({"prompt": "a", "token_ids": [1]}, "U030"), ({"tokens": 0}, "S613")])
def test_a_text_that_cannot_be_run(options: dict[str, Any], code: str, tmp_path: Path) -> None:
    folder = compiled(tmp_path)
    with pytest.raises((Usage, Unsupported)) as err:
        verify(folder, **options)
    assert err.value.code == code


def test_ids_are_cut_and_repeated(tmp_path: Path) -> None:
    folder = compiled(tmp_path)
    for tokens, ids in ((None, [5, 6, 7]), (2, [5, 6]), (8, [5, 6, 7, 5, 6, 7, 5, 6])):
        report = verify(folder, token_ids=[5, 6, 7], tokens=tokens)
        assert report.verdict == "PASS" and report.text is not None and report.text.ids == ids


# --- the bounds

def measured(noise: float, expected: float, tied: int | None = None) -> Distance:
    from dataclasses import replace
    rng = np.random.default_rng(0)
    want = rng.normal(size=(6, 400))
    return replace(distance("x", "int8" if expected else "f32", want + noise * rng.normal(size=want.shape), want, tied),
                   expected=expected)


def test_noise_is_judged_by_what_rounding_makes_of_the_reference() -> None:
    assert measured(0.05, 0.04).ok and not measured(0.05, 0.02).ok and not measured(0.05, 0).ok and measured(1e-4, 0).ok
    assert measured(0.05, 0.04).noise == pytest.approx(0.05, rel=0.1)


def test_another_best_token_fails_unless_it_is_a_near_tie() -> None:
    want = np.zeros((2, 300))
    want[:, 0], want[:, 1] = 1.0, 0.9995
    ours = want.copy()
    ours[1, 1] = 1.0002
    found = distance("x", "f32", ours, want)
    assert found.difference < 1e-3 and found.moved == [1] and not found.ok and (found.position, found.token) == (1, 1)
    want[1, 1] = ours[1, 1] = 0.99995
    ours[1, 1] = 1.00001
    assert distance("x", "f32", ours, want).ok


def test_f32_is_judged_before_the_first_choice_of_experts_that_is_open() -> None:
    want = np.random.default_rng(1).normal(size=(5, 300))
    ours = want.copy()
    ours[3] += np.linspace(0, 1, 300)
    assert not distance("x", "f32", ours, want).ok
    assert distance("x", "f32", ours, want, tied=3).ok and not distance("x", "f32", ours, want, tied=4).ok
    assert not distance("x", "f32", ours, want, tied=0).ok and distance("x", "f32", ours, want, tied=3).position == 3


def test_only_the_named_ops_round(tmp_path: Path) -> None:
    from uaii.compiler import through_passes

    done = through_passes(write_quantised(tmp_path / "model.gguf", llama.PLAIN, MIXED))
    plain, none, all_ = (Meaning(done.graph, done.checkpoint, [5, 6, 7], **how).rows([(0, 3)]) for how in (
        {}, {"rounds": lambda op: False}, {"rounds": lambda op: True}))
    assert np.array_equal(plain, none) and 1e-3 < np.abs(all_ - plain).max() / np.ptp(plain) < 0.3
