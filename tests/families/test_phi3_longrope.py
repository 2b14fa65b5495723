"""LongRoPE around its switch: a text past the original context is rotated otherwise from its first token on."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import parity
import pytest
from click.testing import CliRunner
from family_cases import llama, phi3
from family_cases.phi3 import FACTORS, ORIGINAL
from refusals import refused, refused_config
from tiny_models import Case, prompt, write_folder

from uaii.backends.ort import session as module
from uaii.backends.ort.generate import generate, generate_batch
from uaii.backends.ort.session import Session
from uaii.cli.inspect import main as inspect_command
from uaii.explanation import explain
from uaii.frontend.families import phi3 as phi3_family
from uaii.frontend.open import open_checkpoint
from uaii.ir.diag import Diagnostic
from uaii.provenance import provenance

CONFIGS = Path(__file__).parent.parent / "data" / "configs"
LONG = phi3.PLAIN.set("long", rope_scaling={"type": "longrope", **FACTORS}, **{ORIGINAL: 32})


def at(original: int, **keys: Any) -> Case:
    return LONG.set("long", **{ORIGINAL: original}, **keys)


def opened(case: Case, path: Path, **options: Any) -> Session:
    return parity.session(write_folder(path / "model", case), path / "out", **options)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """Switches beyond 32 tokens."""
    return opened(LONG, tmp_path_factory.mktemp("long"))


def whole(model: Session, ids: list[int], count: int) -> list[int]:
    """Greedy tokens, each from the whole text in one call: no cache can be mixed."""
    out = list(ids)
    for _ in range(count):
        out.append(int(model.logits(out)[-1].argmax()))
    return out[len(ids):]


def greedy(model: Session, ids: list[int], count: int, **more: Any) -> list[int]:
    return generate(model, ids, max_new_tokens=count, ignore_eos=True, **more).run().tokens


# --- one text

@pytest.mark.parametrize(("length", "count"), [(12, 12), (16, 3), (17, 4), (1, 20)])
def test_tokens_across_the_switch_are_those_of_whole_runs(length: int, count: int, tmp_path: Path) -> None:
    model = opened(at(16, max_position_embeddings=128), tmp_path)
    assert model.manifest.rope_switch == 16
    ids = prompt(length, 199)
    assert greedy(model, ids, count) == whole(model, ids, count)


def test_the_switch_shows(model: Session) -> None:
    """Otherwise the tests here would hold for a graph that never switches."""
    ids = prompt(33, 199)
    cache = model.cache()
    first = model.prefill(ids[:32], cache, keep_logits=0)
    assert parity.difference(first, model.logits(ids)[:32]) > 0.05


@pytest.mark.parametrize("kept", [0, 1, 3, 99])
def test_a_call_that_crosses_returns_only_its_own_logits(model: Session, kept: int) -> None:
    ids, cache = prompt(40, 199), model.cache()
    model.prefill(ids[:30], cache)
    got = model.step(np.array([ids[30:]]), None, cache, kept)[0]
    assert len(got) == (min(kept, 10) or 10)
    assert parity.difference(got, model.logits(ids)[-len(got):]) < 1e-5
    assert cache.ids == [ids]


def test_a_long_prompt_in_parts_is_one_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first part alone is shorter than the original context."""
    model = opened(at(600, max_position_embeddings=2048), tmp_path)
    for length in (590, 1100):
        ids = prompt(length, 199)
        monkeypatch.setattr(module, "CHUNK", 512)
        parts = model.logits(ids)
        monkeypatch.setattr(module, "CHUNK", 4096)
        assert parity.difference(parts, model.logits(ids)) < 1e-5


# --- batches

def test_rows_of_a_batch_switch_each_for_itself(model: Session) -> None:
    prompts = [prompt(n, 199) for n in (30, 5, 40, 27, 32)]
    alone = [greedy(model, p, 9) for p in prompts]
    assert alone[0] == whole(model, prompts[0], 9)
    assert [r.tokens for r in generate_batch(model, prompts, max_new_tokens=9, ignore_eos=True)] == alone


def test_rows_keep_their_side_when_another_leaves(model: Session) -> None:
    """The first row ends at once, the second is past the switch, the third crosses it later."""
    prompts = [prompt(n, 199) for n in (8, 40, 29)]
    stop = [greedy(model, prompts[0], 1)[0]]
    alone = [generate(model, p, max_new_tokens=9, stop_ids=stop).run().tokens for p in prompts]
    assert [len(tokens) for tokens in alone] == [1, 9, 9]
    assert [r.tokens for r in generate_batch(model, prompts, max_new_tokens=9, stop_ids=stop)] == alone


def test_a_padded_batch_holds_rows_of_both_sides(model: Session) -> None:
    rows = [prompt(n, 199) for n in (33, 12, 32)]
    ids = np.array([r + [0] * (33 - len(r)) for r in rows])
    mask = (np.arange(33) < np.array([len(r) for r in rows])[:, None]).astype(np.int64)
    got = model.step(ids, mask, model.cache(3), keep_logits=0)
    for line, row in zip(got, rows, strict=True):
        assert parity.difference(line[:len(row)], model.logits(row)) < 1e-5


# --- a cache that is used again

@pytest.mark.parametrize(("held", "then", "reused"), [(20, 28, 20), (20, 40, 0), (50, 60, 50), (50, 25, 0), (32, 32, 31)])
def test_a_chat_goes_on_from_its_cache_where_it_may(model: Session, held: int, then: int, reused: int) -> None:
    """Also where a text is cut back below the switch."""
    ids, cache = prompt(60, 199), model.cache()
    model.prefill(ids[:held], cache)
    again = generate(model, ids[:then], max_new_tokens=6, ignore_eos=True, cache=cache).run()
    assert (again.tokens, again.stats.reused_tokens) == (greedy(model, ids[:then], 6), reused)


def test_an_interrupted_long_prompt_leaves_no_short_cache(model: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    ids, cache, step = prompt(200, 199), model.cache(), model._step

    def interrupted(*given: Any) -> np.ndarray:
        if cache.lengths[0]:
            raise KeyboardInterrupt
        return step(given[0][:, :20], np.array([20]), *given[2:])

    monkeypatch.setattr(model, "_step", interrupted)
    monkeypatch.setattr(module, "CHUNK", 64)
    with pytest.raises(KeyboardInterrupt):
        model.prefill(ids, cache)
    monkeypatch.undo()
    assert cache.lengths == [20] and cache.far == [True]
    assert greedy(model, ids[:25], 4, cache=cache) == greedy(model, ids[:25], 4)


# --- other runtimes

def test_the_graph_stops_where_a_cache_would_be_mixed(model: Session) -> None:
    """What another runtime does: it feeds one token after another and knows nothing of the switch."""
    graph = onnxruntime.InferenceSession(str(model.folder / "model.onnx"), providers=["CPUExecutionProvider"])
    ids = prompt(34, 199)

    def run(new: list[int], past: list[np.ndarray]) -> list[np.ndarray]:
        mask = np.ones((1, past[0].shape[2] + len(new)), np.int64)
        names = [f"past_key_values.{i}.{n}" for i in range(4) for n in ("key", "value")]
        return graph.run(None, {"input_ids": np.array([new]), "attention_mask": mask, **dict(zip(names, past, strict=True))})

    empty = [np.zeros((1, 2, 0, 16), np.float32)] * 8
    _, *past = run(ids[:31], empty)
    logits, *past = run(ids[31:32], past)
    assert parity.difference(logits[0], model.logits(ids[:32])[-1:]) < 1e-5
    with pytest.raises(Exception, match="cached_keys_are_for_32_tokens_at_most_run_the_whole_text_again"):
        run(ids[32:33], past)
    logits, *past = run(ids[:33], empty)
    logits, *_ = run(ids[33:], past)
    assert parity.difference(logits[0], model.logits(ids)[-1:]) < 1e-5


def test_an_artifact_whose_manifest_hides_the_switch_is_refused(tmp_path: Path) -> None:
    folder = opened(LONG, tmp_path).folder
    raw = json.loads((folder / "uaii.json").read_text())
    (folder / "uaii.json").write_text(json.dumps({**raw, "rope_switch": None}))
    with pytest.raises(Diagnostic, match="S607.+rope_switch"):
        Session.open(folder)


# --- the artifact's context

def test_within_the_original_context_the_rotation_is_a_table(model: Session, tmp_path: Path) -> None:
    short = opened(LONG, tmp_path, context=32)
    assert (short.manifest.rope_switch, short.context_length) == (None, 32)
    graph = onnxruntime.InferenceSession(str(short.folder / "model.onnx"), providers=["CPUExecutionProvider"])
    assert [n.name for n in graph.get_overridable_initializers()] == ["num_logits_to_keep"]
    ids = prompt(32, 199)
    assert parity.difference(short.logits(ids), model.logits(ids)) < 1e-5
    attends = json.loads((short.folder / "uaii.json").read_text())["origins"]["/layers.0/attend/GroupQueryAttention"]
    assert {"cos", "sin"} <= set(attends["operands"])


@pytest.mark.parametrize(("context", "factors"), [(32, "short"), (33, "long"), (256, "long")])
def test_a_gguf_takes_its_factors_by_the_context(context: int, factors: str, tmp_path: Path) -> None:
    """As llama.cpp by n_ctx: also for a prompt that is shorter."""
    case = phi3.BEYOND
    checkpoint = phi3.GGUF.write(tmp_path, case)
    model = parity.session(checkpoint, tmp_path / "out", context=context)
    assert model.manifest.rope_switch is None
    one = {**FACTORS, "short_factor": FACTORS[f"{factors}_factor"]}
    folder = opened(case.set("one", rope_scaling={"type": "longrope", **one}), tmp_path / "folder")
    ids = prompt(32, 199)
    assert parity.difference(model.logits(ids), folder.logits(ids)) < 1e-4
    told = explain(checkpoint, context=context)
    why = [p["why"] for p in provenance(told, "@rope.cos")["passes"] if p["pass"] == "fold-rope"]
    assert [f"{factors} factors for every text, as llama.cpp takes them" in text for text in why] == [True]
    held = {row["tensor"]: row["held"] for row in told.record["tensors"] if "rope_factors" in row["tensor"]}
    assert held == {f"rope_factors_{n}.weight": "float" if n == factors else "unused" for n in ("short", "long")}
    assert any("context chooses" in note and "32 tokens" in note for note in told.compiled.lowered.build.notes)


def test_a_gguf_has_no_window_and_may_name_its_type(tmp_path: Path) -> None:
    plain = parity.session(phi3.GGUF.write(tmp_path / "a", phi3.BEYOND), tmp_path / "a.out")
    keys = {"attention.sliding_window": 4, "rope.scaling.type": "longrope"}
    other = parity.session(phi3.GGUF.write(tmp_path / "b", phi3.BEYOND, **keys), tmp_path / "b.out")
    ids = prompt(40, 199)
    np.testing.assert_array_equal(plain.logits(ids), other.logits(ids))


# --- published configurations, and what is said of them

@pytest.mark.parametrize(("name", "turned", "head"), [("Phi-3-mini-128k-instruct", 96, 96), ("Phi-3.5-mini-instruct", 96, 96),
                                                      ("Phi-4-mini-instruct", 96, 128)])
def test_published_rotations(name: str, turned: int, head: int, tmp_path: Path) -> None:
    config = json.loads((CONFIGS / f"{name}.json").read_text())
    read = phi3_family.Phi3Config("phi3", open_checkpoint(write_folder(tmp_path / "model", LONG.but(config=config), {})))
    assert (read.rotary_dim, read.head_dim, read.context()) == (turned, head, 131072)
    scaling = dict(read.rope.scaling.params)
    assert (read.rope.scaling.kind, scaling[ORIGINAL], scaling["factor"]) == ("longrope", 4096, 32.0)
    assert [len(scaling[f"{n}_factor"]) for n in ("short", "long")] == [48, 48]
    assert set(read.windows) == {262144}


def test_inspect_counts_the_factors(tmp_path: Path) -> None:
    folder, file = write_folder(tmp_path / "model", LONG), phi3.GGUF.write(tmp_path, phi3.BEYOND)
    lines = CliRunner().invoke(inspect_command, [str(folder)]).stdout
    assert "rope=longrope, short_factor of 8, long_factor of 8, original_max_position_embeddings 32, factor 8.0\n" in lines
    lines = CliRunner().invoke(inspect_command, [str(file)]).stdout
    assert "divided by tensor rope_factors_short.weight, divided by tensor rope_factors_long.weight" in lines


# --- spellings and refusals

@pytest.mark.parametrize("record", [{"type": "su"}, {"rope_type": "su"}, {"type": "yarn", "rope_type": "longrope"},
                                    {"type": "su", "rope_type": "longrope"}])
def test_older_words_for_longrope(record: dict[str, str], model: Session, tmp_path: Path) -> None:
    other = opened(LONG.set("older", rope_scaling={**record, **FACTORS}), tmp_path)
    for length in (20, 40):
        ids = prompt(length, 199)
        np.testing.assert_array_equal(other.logits(ids), model.logits(ids))


RECORD = {"type": "longrope", **FACTORS}


@pytest.mark.parametrize(("keys", "code", "says"), [
    ({"rope_scaling": {**RECORD, "type": "proportional"}}, "F111", "unsupported rope_scaling.type=proportional"),
    ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "F111", "unsupported rope_scaling.type=linear"),
    ({"rope_scaling": {"type": "yarn", "factor": 2.0}}, "F102", "lacks 'short_factor'"),  # transformers lacks them too
    ({"rope_scaling": {**RECORD, "type": "default"}}, "F101", "short_factor"),
    ({"rope_scaling": {**RECORD, "long_factor": [1.0] * 7}}, "F108", "long_factor has 7 factors, 8 pairs"),
    ({"rope_scaling": RECORD, "partial_rotary_factor": 0.5}, "F108", "short_factor has 8 factors, 4 pairs"),
    ({"rope_scaling": {**RECORD, "short_factor": [0.0] * 8}}, "F104", "short_factor must be a list of numbers above 0"),
    ({"rope_scaling": {**RECORD, "short_factor": [True] * 8}}, "F104", "short_factor"),
    ({"rope_scaling": {**RECORD, "short_factor": 1.0}}, "F104", "short_factor"),
    ({"rope_scaling": {k: v for k, v in RECORD.items() if k != "long_factor"}}, "F102", "lacks 'long_factor'"),
    ({"rope_scaling": {**RECORD, "short_mscale": 1.2}}, "F101", "short_mscale"),
    ({"rope_scaling": {**RECORD, "factor": 0}}, "F104", "factor"),
    ({"rope_scaling": {**RECORD, "attention_factor": -1.0}}, "F104", "attention_factor"),
    ({"rope_scaling": {**RECORD, ORIGINAL: 64}}, "F108", "contradicts original_max_position_embeddings, which is 32"),
    ({"rope_scaling": {**RECORD, ORIGINAL: 64}, ORIGINAL: ...}, "F108", "which is 4096 when absent"),
    ({"rope_scaling": RECORD, ORIGINAL: 1}, "F104", "at least 2"),
    ({"rope_scaling": RECORD, "rope_parameters": {**RECORD, "factor": 2.0}}, "F108", "contradict each other"),
])
def test_what_is_refused(keys: dict[str, Any], code: str, says: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", LONG)
    error = refused_config(folder, LONG.set("refused", **keys).config)
    assert (error.code, says in error.says) == (code, True), error


def test_other_families_refuse_longrope_by_name(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", llama.PLAIN)
    error = refused_config(folder, {**llama.PLAIN.config, "rope_scaling": RECORD})
    assert (error.code, error.says) == ("F111", "unsupported rope_scaling.type=longrope")


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
def test_a_damaged_factor_of_a_gguf_is_refused(value: float, tmp_path: Path) -> None:
    tensors = phi3.GGUF.tensors(phi3.BEYOND)
    tensors["rope_factors_short.weight"] = np.array([1.0] * 7 + [value], np.float32)
    error = refused(phi3.GGUF.write(tmp_path, phi3.BEYOND, tensors))
    assert (error.code, "rope_factors_short.weight" in error.says) == ("T206", True)


def test_factors_of_a_gguf_come_in_pairs_and_alone(tmp_path: Path) -> None:
    tensors = phi3.GGUF.tensors(phi3.BEYOND)
    del tensors["rope_factors_short.weight"]
    error = refused(phi3.GGUF.write(tmp_path, phi3.BEYOND, tensors))
    assert (error.code, "rope_factors_short.weight" in error.says) == ("T201", True)
    for kind in ("linear", "yarn"):
        error = refused(phi3.GGUF.write(tmp_path, phi3.BEYOND, **{"rope.scaling.type": kind, "rope.scaling.factor": 2.0}))
        assert (error.code, "scales rope twice" in error.says) == ("F108", True)
