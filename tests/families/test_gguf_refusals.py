"""What a GGUF asks for and uaii does not do is refused by name, by compile and inspect alike, and leaves nothing behind."""
from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from family_cases import gemma, gemma2, llama, qwen2, qwen3
from gguf_twin import Twin, fused_projections
from llamacpp_files import LLAMA_TWIN, divided
from raw_gguf import Raw, gguf_bytes
from refusals import refused
from tiny_models import Arrays, Case, write_gguf
from tiny_tokenizers import T0_TOKENS, t0_gguf, t1_gguf

from uaii.inspection import inspect

PLAIN = llama.PLAIN
WIDE = llama.PLAIN.set("wide", head_dim=32)
ONES = np.ones(8, np.float32)
UNSTATED = dict.fromkeys(("attention.key_length", "attention.value_length", "rope.dimension_count"))
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32}


def model(twin: Twin = LLAMA_TWIN, case: Case = PLAIN, change: Callable[[Arrays], Arrays] = dict,
          **keys: Any) -> Callable[[Path], Path]:
    """Writes a whole file, with keys replaced (None removes one) and tensors changed."""
    return lambda folder: twin.write(folder, case, change(twin.tensors(case)), **keys)


def extra(*names: str) -> Callable[[Arrays], Arrays]:
    return lambda tensors: tensors | dict.fromkeys(names, ONES)


def without(*names: str) -> Callable[[Arrays], Arrays]:
    return lambda tensors: {n: x for n, x in tensors.items() if n not in names}


def nan_divisors(tensors: Arrays) -> Arrays:
    return tensors | {"rope_freqs.weight": np.array([1, np.nan, 8, 8, 8, 8, 8, 8], np.float32)}


def vocabulary(keys: dict[str, Any]) -> Callable[[Path], Path]:
    """The whole model with a vocabulary of its own."""
    case = PLAIN.set("vocabulary", vocab_size=len(T0_TOKENS))
    return model(case=case, **keys, vocab_size=None)


def header(data: bytes) -> Callable[[Path], Path]:
    """A file of these bytes."""
    def write(folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.gguf").write_bytes(data)
        return folder / "model.gguf"
    return write


def no_tensors(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return write_gguf(folder / "model.gguf", "llama", LLAMA_TWIN.keys(PLAIN, {}) | t0_gguf(), {})


def typed(number: int, name: str = "blk.0.attn_q.weight") -> bytes:
    return gguf_bytes([("general.architecture", "str", "llama")], [Raw(name, (256,), number, bytes(1024))])


def added_one(tensors: Arrays) -> Arrays:
    return tensors | {"output.weight": np.zeros((199, 72), np.float32)}


CASES: dict[str, tuple[Callable[[Path], Path], str, int, str]] = {
    # what the architecture does not have
    "experts": (model(expert_count=4, expert_used_count=2), "T201", 4, "llama needs 16 tensors that the checkpoint lacks"),
    "experts elsewhere": (model(qwen3.GGUF, qwen3.GGUF_CASES[0], expert_count=4), "F101", 3, "qwen3.expert_count"),
    "expert tensors": (model(change=extra("blk.0.ffn_gate_exps.weight")), "T202", 4, "blk.0.ffn_gate_exps.weight"),
    "partial rotary": (model(**{"rope.dimension_count": 8}), "F103", 3, "rotates 8 of 16 features: llama has no partial rotary"),
    "value heads of another width": (model(**{"attention.value_length": 8}), "F103", 3, "differs from attention.key_length"),
    "predicted tokens": (model(nextn_predict_layers=1), "F103", 3, "unsupported nextn_predict_layers=1"),
    "predicting layer": (model(change=extra("blk.3.nextn.eh_proj.weight")), "T202", 4, "blk.3.nextn.eh_proj.weight"),
    "not causal": (model(**{"attention.causal": False}), "F103", 3, "unsupported attention.causal=False"),
    "layers that differ": (model(**{"attention.head_count_kv": [2, 2, 1, 2]}), "F103", 3, "attention.head_count_kv=[2, 2, 1, 2]"),
    "a key nobody reads": (model(**{"attention.temperature_scale": 0.1}), "F101", 3, "llama.attention.temperature_scale"),
    "longrope": (model(**{"rope.scaling.type": "longrope"}), "F111", 3, "unsupported rope_scaling.type=longrope"),
    "unknown scaling": (model(**{"rope.scaling.type": "spiral"}), "F111", 3, "unsupported rope_scaling.type=spiral"),
    "scaled twice": (model(change=lambda t: divided(t, PLAIN), **YARN), "F108", 4, "scales rope twice"),
    "scale of a tensor": (model(change=extra("blk.0.attn_q.scale")), "T202", 4, "blk.0.attn_q.scale"),
    "scale of the head": (model(change=extra("output.scale")), "T202", 4, "output.scale"),
    "divisors that are no number": (model(change=nan_divisors), "T206", 4, "must be finite"),
    "head of a Gemma": (model(gemma.GGUF, gemma.GGUF_CASES[0], added_one), "T202", 4, "output.weight"),
    "Gemma 2 named llama": (lambda folder: write_gguf(_in(folder), "llama", gemma2.GGUF.keys(gemma2.GGUF_CASES[0], {
        "attn_logit_softcapping": None, "final_logit_softcapping": None}), gemma2.GGUF.tensors(gemma2.GGUF_CASES[0])),
        "T202", 4, "blk.0.post_attention_norm.weight"),
    "adapter": (model(**{"general.type": "adapter"}), "F121", 3, 'model.gguf is no model: its general.type is "adapter"'),
    "unknown architecture": (lambda folder: write_gguf(_in(folder), "clip", {"block_count": 1}, {"v.weight": ONES}), "F121", 3,
                             "unsupported GGUF architecture: clip"),
    # what does not fit together
    "heads wider than stated": (model(case=WIDE, **UNSTATED), "T203", 4, "blk.0.attn_q.weight"),
    "fused heads wider than stated": (model(case=WIDE, change=fused_projections, **UNSTATED), "T203", 4,
                                      "blk.0.attn_qkv.weight"),
    "a tensor missing": (model(change=without("blk.2.ffn_up.weight")), "T201", 4, "blk.2.ffn_up.weight"),
    "a layer too many": (model(block_count=3), "T202", 4, "blk.3.attn_norm.weight"),
    "a layer too few": (model(block_count=5), "T201", 4, "blk.4.attn_norm.weight"),
    "no layers": (model(block_count=0), "F104", 4, "block_count must be a whole number from 1"),
    "too many layers": (model(block_count=1 << 31), "F104", 4, "block_count must be a whole number from 1"),
    "no heads": (model(**{"attention.head_count": 0}), "F104", 4, "attention.head_count must be"),
    "a list for each layer, short": (model(**{"attention.head_count": [4, 4]}), "F104", 4, "for each of 4 layers, lists 2"),
    "a word for a number": (model(**{"attention.head_count": "4"}), "F104", 4, "attention.head_count must be"),
    # required keys
    **{f"no {key}": (model(**{key: None}), "F102", 4, key) for key in (
        "context_length", "embedding_length", "block_count", "feed_forward_length", "attention.head_count",
        "attention.layer_norm_rms_epsilon")},
    "no architecture": (header(gguf_bytes([("llama.block_count", "u32", 1)], [Raw("w", (8,), 0, bytes(32))])), "F122", 4,
                        "does not say its general.architecture"),
    "no tensors": (no_tensors, "T205", 4, "model.gguf holds no tensors"),
    # tokenizers
    "unknown pre-tokenizer": (vocabulary(t0_gguf(pre="not-a-real-pre")), "K502", 3, "unknown pre-tokenizer 'not-a-real-pre'"),
    "no merges": (vocabulary(t0_gguf(merges=None)), "K504", 4, f"the vocabulary of {len(T0_TOKENS)} tokens comes with 0 merges"),
    "no scores": (vocabulary(t1_gguf(scores=None)), "K504", 3, "without scores"),
    # types and containers
    "Q4_0_4_4": (header(typed(31)), "G309", 3, "GGUF tensor type Q4_0_4_4 was removed from ggml (tensor blk.0.attn_q.weight)"),
    "Q4_2": (header(typed(4)), "G309", 3, "GGUF tensor type Q4_2 was removed"),
    "Q8_K": (header(typed(15)), "G309", 3, "Q8_K is for activations, never for weights"),
    "NVFP4": (header(typed(40)), "G309", 3, "GGUF tensor type NVFP4 is not loaded"),
    "unknown type": (header(typed(99)), "G309", 3, "GGUF tensor type number 99 is unknown"),
    "big endian": (header(b"GGUF" + struct.pack(">Iqq", 3, 0, 0)), "G302", 3, "is a big-endian GGUF file"),
    "version 1": (header(b"GGUF" + struct.pack("<III", 1, 0, 0) + bytes(16)), "G302", 3, "has GGUF version 1"),
    "version 4": (header(gguf_bytes(version=4)), "G302", 3, "has GGUF version 4"),
}


def _in(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "model.gguf"


@pytest.mark.parametrize("name", CASES)
def test_refused_by_name(name: str, tmp_path: Path) -> None:
    write, code, exit_code, text = CASES[name]
    file = write(tmp_path / "model")
    error = refused(file)
    assert (error.code, error.exit_code) == (code, exit_code), str(error)
    assert text in error.says
    report = inspect(file)
    assert not report.ok and report.exit_code == exit_code
    assert [(b.code, b.says) for b in report.blockers if b.code == code] == [(code, error.says)]


def test_a_file_without_key_length_names_both_widths(tmp_path: Path) -> None:
    """Early conversions of Mistral Nemo say 5120 features and 32 heads of tensors made for heads of 128, not 160."""
    for change, tensor in ((dict, "blk.0.attn_q.weight"), (fused_projections, "blk.0.attn_qkv.weight")):
        error = refused(model(case=WIDE, change=change, **UNSTATED)(tmp_path))
        assert tensor in error.says and error.why == "by the configuration a head is 16 wide, by this tensor 32"
        assert "llama.attention.key_length = absent" in str(error)


@pytest.mark.parametrize(("name", "what"), [
    ("blk.0.attn_q.scale", "scales of whole tensors"), ("output.input_scale", "scales of whole tensors"),
    ("blk.1.ffn_up_exps.weight", "a mixture of experts"), ("blk.1.ffn_gate_inp.weight", "a mixture of experts"),
    ("blk.3.nextn.enorm.weight", "further tokens (MTP)"), ("blk.0.attn_q.weight.lora_a", "an adapter"),
    ("blk.0.post_ffw_norm.weight", "norms after each half"), ("blk.0.attn_k_norm.weight", "norms of queries and keys"),
    ("rope_factors_long.weight", "longrope factors")])
def test_a_tensor_known_elsewhere_is_explained(name: str, what: str, tmp_path: Path) -> None:
    error = refused(model(change=extra(name))(tmp_path))
    assert error.code == "T202" and any(name in note and what in note for note in error.notes)


def test_what_a_file_says_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    bad = gguf_bytes([("general.architecture", "str", b"\x1b[2J\xff"), ("llama.block_count", "u32", 1)])
    error = refused(header(bad)(tmp_path))
    assert error.says == r"unsupported GGUF architecture: \x1b[2J\udcff"
    assert str(error).encode().isascii()


def test_a_tokenizer_of_another_kind_leaves_token_ids(tmp_path: Path) -> None:
    report = inspect(vocabulary(t0_gguf(model="bert"))(tmp_path))
    assert report.ok and report.gates["tokenizer"].state == "token ids only"
    assert "no tokenizer: tokenizer kind 'bert' (WordPiece) is not supported" in report.notes


def test_harmless_values_of_these_keys_are_not_refused(tmp_path: Path) -> None:
    keys = {"attention.causal": True, "nextn_predict_layers": 0, "expert_count": 0, "general.type": "model"}
    assert inspect(model(**keys)(tmp_path)).ok
    assert inspect(model(qwen2.GGUF, qwen2.GGUF_CASES[0], nextn_predict_layers=0)(tmp_path / "b")).ok
