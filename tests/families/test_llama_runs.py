"""What a llama's artifact does beyond one prompt's logits: dynamic rope in batches and chats, ties, spare vocabulary rows."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import parity
import pytest
from family_cases import llama
from tiny_models import Case, write_folder

from uaii.backends.ort.generate import generate, generate_batch
from uaii.backends.ort.session import Session
from uaii.compiler import compile_model
from uaii.ir.diag import Usage

PLAIN = llama.PLAIN
DYNAMIC = PLAIN.set("dynamic", rope_scaling={"type": "dynamic", "factor": 32.0}, max_position_embeddings=32)
CASES = {case.name: case for case in llama.CASES}


def _session(case: Case, path: Path) -> Session:
    return parity.session(write_folder(path / "model", case), path / "out")


@pytest.mark.parametrize("case", [PLAIN, DYNAMIC], ids=["plain", "dynamic"])
def test_a_batch_gives_each_prompt_its_single_run(case: Case, tmp_path: Path) -> None:
    """With dynamic rope a longer neighbour must not change a row's frequencies."""
    model = _session(case, tmp_path)
    prompts = case.prompts()
    alone = [generate(model, p, max_new_tokens=16, ignore_eos=True).run().tokens for p in prompts]
    assert [r.tokens for r in generate_batch(model, prompts, max_new_tokens=16, ignore_eos=True)] == alone


@pytest.mark.parametrize("case", [PLAIN, DYNAMIC], ids=["plain", "dynamic"])
def test_a_used_cache_changes_nothing(case: Case, tmp_path: Path) -> None:
    """With dynamic rope cached keys were rotated for another length, so a prompt is run whole."""
    model, (short, long) = _session(case, tmp_path), case.prompts()
    cache = model.cache()
    generate(model, long + short, max_new_tokens=4, ignore_eos=True, cache=cache).run()
    again = generate(model, long, max_new_tokens=16, ignore_eos=True, cache=cache, logprobs=1).run()
    assert again.tokens == generate(model, long, max_new_tokens=16, ignore_eos=True).run().tokens
    assert (again.stats.reused_tokens > 0) == (case is PLAIN)
    assert parity.difference(model.prefill(short, cache), _after(model, again.prompt_tokens + again.tokens[:-1], short)) < 1e-5


def _after(model: Session, held: list[int], new: list[int]) -> np.ndarray:
    """Logits of the last of `new` after one call with `held[:prompt]` and steps for the rest, as `generate` feeds them."""
    cache = model.cache()
    model.prefill(held[:100], cache)
    for token in held[100:]:
        model.step(np.array([[token]]), None, cache)
    return model.prefill(new, cache)


def test_a_long_prompt_is_one_call_only_where_it_must_be(tmp_path: Path) -> None:
    dynamic, plain = _session(DYNAMIC, tmp_path / "d"), _session(PLAIN, tmp_path / "p")
    assert (dynamic.manifest.whole_prompt, plain.manifest.whole_prompt) == (True, False)


@pytest.mark.parametrize(("name", "context"), [
    ("f32", 256), ("linear-type", 256), ("linear-rope-type", 160), ("dynamic-type", 128), ("llama3-type", 256), ("yarn", 256),
    ("yarn-no-original", 256)])
def test_the_context_is_what_the_scaling_is_for(name: str, context: int, tmp_path: Path) -> None:
    case = CASES[name]
    made = compile_model(write_folder(tmp_path / "model", case), tmp_path / "out")
    assert made.manifest["context_length"] == context


def test_a_tied_model_with_a_copy_of_its_table_is_the_tied_model(tmp_path: Path) -> None:
    tied = CASES["tied"]
    table = tied.tensors()["model.embed_tokens.weight"]
    ids = tied.prompts()[0]
    plain = _session(tied, tmp_path / "plain").logits(ids)
    folder = write_folder(tmp_path / "copy", tied, {**tied.tensors(), "lm_head.weight": table})
    assert parity.difference(parity.session(folder, tmp_path / "out").logits(ids), plain) < 1e-6
    other = _session(CASES["tied-own-head"], tmp_path / "other").logits(ids)
    assert parity.difference(other, plain) > 100 * parity.TOLERANCE


def test_an_id_without_a_row_is_refused_before_anything_runs(tmp_path: Path) -> None:
    model = _session(PLAIN, tmp_path)
    for bad in (199, -1):
        with pytest.raises(Usage) as caught:
            model.logits([5, bad])
        assert (caught.value.code, f"token id {bad} at position 1" in caught.value.says) == ("S611", True)


def test_a_tie_is_stored_once(tmp_path: Path) -> None:
    sizes = {}
    for name in ("tied", "tie-absent"):
        compile_model(write_folder(tmp_path / name, CASES[name]), tmp_path / f"{name}.out", weights="f32")
        sizes[name] = (tmp_path / f"{name}.out" / "model.onnx.data").stat().st_size
    assert sizes["tie-absent"] - sizes["tied"] >= 199 * 64 * 4
