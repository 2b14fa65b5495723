"""A llama written as llama.cpp's converter writes it gives the folder's logits."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import parity
import pytest
from family_cases import llama
from tiny_models import Arrays, Case, write_folder, write_gguf

from uaii.ir.diag import Diagnostic, Malformed

EQUAL = 1e-4  # of the range: the same weights through two readers
LLAMA3 = llama.PLAIN.set("llama3", rope_scaling={"rope_type": "llama3", **llama.LLAMA3})


def _model(path: Path, case: Case, tensors: Arrays, **metadata: Any) -> Path:
    keys = {"tokenizer.ggml.model": "none", **llama.gguf_metadata(case.config), **metadata}
    kept = {k: v for k, v in keys.items() if v is not None}
    return write_gguf(path / "model.gguf", "llama", kept, tensors)


def _logits(checkpoint: Path, out: Path, ids: list[int]) -> np.ndarray:
    return parity.session(checkpoint, out).logits(ids)


def _distance(tmp_path: Path, case: Case, tensors: Arrays, **metadata: Any) -> float:
    """Of the GGUF's logits from the folder's, over the longest prompt."""
    ids = case.prompts()[-1]
    folder = _logits(write_folder(tmp_path / "model", case), tmp_path / "folder.out", ids)
    return parity.difference(_logits(_model(tmp_path, case, tensors, **metadata), tmp_path / "gguf.out", ids), folder)


SAME = [llama.PLAIN, llama.PLAIN.set("biases", attention_bias=True, mlp_bias=True),
        llama.PLAIN.set("tied", tie_word_embeddings=True), llama.PLAIN.set("one-kv-head", num_key_value_heads=1),
        llama.PLAIN.set("wide-heads", head_dim=32), llama.PLAIN.set("theta", rope_theta=5e5)]


@pytest.mark.parametrize("fused", [False, True], ids=["split", "fused"])
@pytest.mark.parametrize("case", SAME, ids=lambda case: case.name)
def test_a_gguf_gives_the_folders_logits(case: Case, fused: bool, tmp_path: Path) -> None:
    assert _distance(tmp_path, case, llama.gguf_tensors(case, fused=fused)) <= EQUAL


def test_a_linear_scale_is_read(tmp_path: Path) -> None:
    case = llama.PLAIN.set("linear", rope_scaling={"type": "linear", "factor": 4.0})
    scale = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    assert _distance(tmp_path, case, llama.gguf_tensors(case), **scale) <= EQUAL


def test_a_rope_freqs_tensor_is_the_llama3_scaling(tmp_path: Path) -> None:
    tensors = llama.gguf_tensors(LLAMA3)
    assert _distance(tmp_path, LLAMA3, {**tensors, "rope_freqs.weight": llama.rope_freqs(LLAMA3.config)}) <= EQUAL
    assert _distance(tmp_path / "again", LLAMA3, tensors) > 100 * parity.TOLERANCE


@pytest.mark.parametrize("fused", [False, True], ids=["split", "fused"])
def test_rows_that_were_not_permuted_are_seen(fused: bool, tmp_path: Path) -> None:
    """The negative control: were the un-permutation dropped, the comparison above would fail by this much."""
    tensors = llama.gguf_tensors(llama.PLAIN, permuted=False, fused=fused)
    assert _distance(tmp_path, llama.PLAIN, tensors) > 100 * parity.TOLERANCE


def test_k_is_permuted_by_its_own_head_count(tmp_path: Path) -> None:
    tensors = llama.gguf_tensors(llama.PLAIN)
    for name in [n for n in tensors if "attn_k" in n]:
        plain = llama.gguf_tensors(llama.PLAIN, permuted=False)[name]
        tensors[name] = llama.interleaved_rows(plain, llama.BASE["num_attention_heads"])
    assert _distance(tmp_path, llama.PLAIN, tensors) > 100 * parity.TOLERANCE


def test_the_width_of_a_head_is_read_from_the_file(tmp_path: Path) -> None:
    """Without key_length the heads would be 64/4 wide and the tensors do not fit: an error, not 16."""
    case = llama.PLAIN.set("wide", head_dim=32)
    file = _model(tmp_path, case, llama.gguf_tensors(case), **{
        "attention.key_length": None, "attention.value_length": None, "rope.dimension_count": None})
    with pytest.raises(Malformed) as caught:
        parity.session(file, tmp_path / "out")
    assert caught.value.code == "T203"
    assert "blk.0.attn_q.weight" in caught.value.says


@pytest.mark.parametrize(("extra", "code"), [("blk.0.attn_q_norm.weight", "T202"), ("blk.4.attn_q.weight", "T202"),
                                             ("rope_factors_long.weight", "T202")])
def test_a_tensor_that_nobody_uses_is_an_error(extra: str, code: str, tmp_path: Path) -> None:
    tensors = {**llama.gguf_tensors(llama.PLAIN), extra: np.ones(8, np.float32)}
    with pytest.raises(Diagnostic) as caught:
        parity.session(_model(tmp_path, llama.PLAIN, tensors), tmp_path / "out")
    assert caught.value.code == code
    assert extra in caught.value.says
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("key", sorted(llama.gguf_metadata(llama.BASE)))
def test_each_key_of_a_gguf_is_read(key: str, tmp_path: Path) -> None:
    """A changed value changes the logits or the context, or is refused."""
    value = llama.gguf_metadata(llama.BASE)[key]
    changed = {"rope.freq_base": 5e5, "attention.layer_norm_rms_epsilon": 0.3}.get(key, value // 2)
    tensors = llama.gguf_tensors(llama.PLAIN)
    try:
        model = parity.session(_model(tmp_path, llama.PLAIN, tensors, **{key: changed}), tmp_path / "out")
    except Diagnostic as error:
        assert error.exit_code in (3, 4)
        return
    if key == "context_length":
        assert model.context_length == changed
        return
    ids = llama.PLAIN.prompts()[-1]
    plain = parity.session(_model(tmp_path, llama.PLAIN, tensors), tmp_path / "plain").logits(ids)
    assert parity.difference(model.logits(ids), plain) > parity.TOLERANCE


@pytest.mark.parametrize("kind", ["longrope", "spiral"])
def test_an_unknown_rope_type_is_refused(kind: str, tmp_path: Path) -> None:
    file = _model(tmp_path, llama.PLAIN, llama.gguf_tensors(llama.PLAIN), **{"rope.scaling.type": kind})
    with pytest.raises(Diagnostic) as caught:
        parity.session(file, tmp_path / "out")
    assert caught.value.says == f"unsupported rope_scaling.type={kind}"
    assert (caught.value.exit_code, (tmp_path / "out").exists()) == (3, False)
