"""Where llama.cpp reads a file of these families otherwise than transformers reads a folder, the file is read as llama.cpp does.

Each equality here was also measured against llama.cpp itself on the same file.
"""
from __future__ import annotations

from pathlib import Path
from typing import Any

import parity
import pytest
from family_cases import granite, llama, olmo, olmo3, qwen2, qwen3, smollm3
from family_cases.llama import ORIGINAL
from gguf_twin import Twin
from refusals import refused
from tiny_models import Case, write_folder

EQUAL = 1e-4  # of the range
LONG = olmo3.PLAIN.but(lengths=(100,))
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32}
UNREAD = {"rope.scaling.yarn_beta_fast": 4.0, "rope.scaling.yarn_attn_factor": 2.0, "rope.scaling.yarn_ext_factor": 0.5}
FLAGS = "attention.sliding_window_pattern"
SCALED = {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, ORIGINAL: 32}}


def _types(*full: int) -> dict[str, Any]:
    return {"layer_types": ["full_attention" if i in full else "sliding_attention" for i in range(5)]}


@pytest.mark.parametrize(("twin", "file", "keys", "folder"), [
    (qwen2.GGUF, qwen2.PLAIN, {"attention.sliding_window": 8}, qwen2.PLAIN),
    (smollm3.GGUF, smollm3.PLAIN, {"attention.sliding_window": 8}, smollm3.PLAIN),
    (smollm3.GGUF, smollm3.PLAIN.set("x", no_rope_layers=smollm3.SOME), {}, smollm3.PLAIN),
    (smollm3.GGUF, smollm3.PLAIN, {"rope.freq_base": None}, smollm3.PLAIN.set("base", rope_theta=1e4)),
    (qwen2.GGUF, qwen2.YARN, {**YARN, **UNREAD}, qwen2.YARN),
    (granite.GGUF, granite.PLAIN, {"attention.scale": None, "embedding_scale": None, "residual_scale": None},
     granite.PLAIN.set("x", attention_multiplier=0.25, embedding_multiplier=1, residual_multiplier=1)),
    (granite.GGUF, granite.PLAIN, {"rope.scaling.finetuned": True}, granite.PLAIN),
    (olmo.GGUF, olmo.PLAIN, {"attention.clamp_kqv": 0.0}, olmo.PLAIN.set("x", clip_qkv=None)),
    (olmo3.GGUF, LONG, {**YARN, **UNREAD}, LONG.set("x", **SCALED)),
    (olmo3.GGUF, LONG, {FLAGS: None}, LONG),
    (olmo3.GGUF, LONG, {FLAGS: 2}, LONG.set("x", **_types(1, 3))),
    (olmo3.GGUF, LONG, {FLAGS: 0}, LONG.set("x", **_types())),
    (olmo3.GGUF, LONG, {"attention.sliding_window": 0}, LONG.set("x", **_types(0, 1, 2, 3, 4))),
    (olmo3.GGUF, LONG, {"rope.freq_base_swa": 500000.0}, LONG),
], ids=lambda x: x.arch if isinstance(x, Twin) else "" if isinstance(x, Case) else ",".join(x) or "layers")
def test_a_file_is_read_as_llama_cpp_reads_it(twin: Twin, file: Case, keys: dict[str, Any], folder: Case, tmp_path: Path) -> None:
    ids = file.prompts()[-1]
    theirs = parity.session(write_folder(tmp_path / "model", folder), tmp_path / "folder.out").logits(ids)
    ours = parity.session(twin.write(tmp_path, file, **keys), tmp_path / "gguf.out").logits(ids)
    assert parity.difference(ours, theirs) <= EQUAL


def test_the_layers_without_rope_are_seen(tmp_path: Path) -> None:
    """The negative control of the comparison that ignores no_rope_layers."""
    ids = smollm3.PLAIN.prompts()[-1]
    cases = (smollm3.PLAIN, smollm3.PLAIN.set("some", no_rope_layers=smollm3.SOME))
    logits = [parity.session(write_folder(tmp_path / c.name, c), tmp_path / f"{c.name}.out").logits(ids) for c in cases]
    assert parity.difference(*logits) > 10 * parity.TOLERANCE


@pytest.mark.parametrize(("twin", "case", "keys", "code"), [
    (granite.GGUF, granite.PLAIN, {"logit_scale": None}, "F102"),
    (granite.GGUF, granite.PLAIN, {"rope.scaling.finetuned": False}, "F103"),
    (granite.GGUF, granite.PLAIN, {"expert_count": 4}, "F103"),
    (olmo3.GGUF, olmo3.PLAIN, {"rope.freq_base_swa": 1e4}, "F103"),
    (olmo3.GGUF, olmo3.PLAIN, {"rope.scaling.attn_factor": 1.2}, "F103"),
    (olmo3.GGUF, olmo3.PLAIN, {FLAGS: [True] * 4}, "F104"),
    (qwen2.GGUF, qwen2.PLAIN, {"attention.scale": 0.5}, "F101"),
    (qwen2.GGUF, qwen2.PLAIN, {"rope.scaling.yarn_log_multiplier": 0.1}, "F101"),
    (qwen2.GGUF, qwen2.PLAIN, {"context_length": None}, "F102"),
], ids=lambda x: x.arch if isinstance(x, Twin) else "" if isinstance(x, Case) else x if isinstance(x, str) else ",".join(x))
def test_a_key_that_cannot_be_meant_is_refused(twin: Twin, case: Case, keys: dict[str, Any], code: str, tmp_path: Path) -> None:
    error = refused(twin.write(tmp_path, case, **keys))
    assert (error.code, next(iter(keys)) in str(error)) == (code, True)


def test_the_width_of_a_head_is_never_guessed_past_the_file(tmp_path: Path) -> None:
    """Without key_length heads are 64/4 wide and the tensors do not fit: the error names the tensor and the absent key."""
    absent = {"attention.key_length": None, "attention.value_length": None, "rope.dimension_count": None}
    error = refused(qwen3.GGUF.write(tmp_path, qwen3.PLAIN, **absent))
    assert error.code == "T203"
    assert "qwen3.attention.key_length = absent" in str(error)


def test_llama_files_have_no_window(tmp_path: Path) -> None:
    """Mistral's files are arch llama, where llama.cpp gives no layer a window."""
    ids = llama.PLAIN.prompts()[-1]
    twin = Twin("llama", llama.GGUF_NAMES, llama.gguf_metadata, permuted=True)
    plain = parity.session(twin.write(tmp_path / "a", llama.PLAIN), tmp_path / "a.out").logits(ids)
    stated = parity.session(twin.write(tmp_path / "b", llama.PLAIN, **{"attention.sliding_window": 8}), tmp_path / "b.out")
    assert parity.difference(stated.logits(ids), plain) == 0


def test_olmo2_files_have_a_head_of_their_own(tmp_path: Path) -> None:
    tensors = {n: x for n, x in olmo3.GGUF.tensors(olmo3.PLAIN).items() if n != "output.weight"}
    error = refused(olmo3.GGUF.write(tmp_path, olmo3.PLAIN, tensors))
    assert (error.code, "output.weight" in error.says) == ("T201", True)
