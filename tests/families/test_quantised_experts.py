"""Experts in blocks compute the values that the blocks mean, packed and in f32, and each tensor is said to be held so."""
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import parity
import pytest
from family_cases import mixtral, qwen2_moe
from gguf_twin import Twin
from quantised_gguf import meant, stored, write_stored
from tiny_models import Case

from uaii.backends import reference
from uaii.backends.ort.session import Session
from uaii.compiler import compile_model, through_passes
from uaii.ir.types import BLOCKS

EXACT = 1e-4  # of the range: the same values through two files
NOISE = 4.5e-2  # rms over the logits' std: activations rounded to 8 bits; llama.cpp has 0.026 to 0.039 on these very files
CHOSEN = 6e-2  # the same of the median token where some choose otherwise; llama.cpp has 0.034 and 0.078
SPREAD = 0.25
WIDE = mixtral.PLAIN.set("wide", hidden_size=256, intermediate_size=256, head_dim=64).but(lengths=(40,))
# Rounded activations may choose another expert where two are all but equal, which says nothing of its values: here all work.
ALL_WORK = WIDE.set("all-work", num_experts_per_tok=4)
SHARED = qwen2_moe.PLAIN.set("wide", hidden_size=256, moe_intermediate_size=256, shared_expert_intermediate_size=256, head_dim=64,
                             num_experts_per_tok=4).but(lengths=(40,))
REST = {"attn": "Q8_0", "token_embd": "Q8_0", "output.": "Q8_0", "shexp": "Q8_0"}
KINDS: dict[str, Mapping[str, str]] = {
    "Q4_0": {"exps": "Q4_0"}, "Q8_0": {"exps": "Q8_0"}, "Q6_K": {"exps": "Q6_K"}, "MXFP4": {"exps": "MXFP4"},
    "Q4_K": {"exps": "Q4_K"}, "Q5_1": {"exps": "Q5_1"}, "IQ3_S": {"exps": "IQ3_S"},
    "Q4_K_M": {"down_exps": "Q6_K", "exps": "Q4_K"}, "gate-unlike-up": {"gate_exps": "Q4_K", "up_exps": "Q5_0", "exps": "Q8_0"},
}
CASES = [*(pytest.param(mixtral.GGUF, ALL_WORK, kinds, id=f"llama-{name}") for name, kinds in KINDS.items()),
         *(pytest.param(qwen2_moe.GGUF, SHARED, KINDS[name], id=f"qwen2moe-{name}") for name in ("Q4_0", "Q4_K_M"))]


def _meant(tmp_path: Path, twin: Twin, case: Case, kinds: Mapping[str, str]) -> tuple[Path, np.ndarray, set[str]]:
    """The file, the logits [S,V] of its blocks' values in F32, and the names of the tensors in blocks."""
    tensors = stored(case, kinds | REST | {"ffn_gate_inp": "F32"}, SPREAD, twin)
    plain = write_stored(tmp_path / "plain.gguf", case, {n: ("F32", x) for n, x in meant(tensors).items()}, twin)
    logits = parity.session(plain, tmp_path / "plain").logits(case.prompts()[-1])
    return write_stored(tmp_path / "model.gguf", case, tensors, twin), logits, {n for n, (k, _) in tensors.items()
                                                                                 if k.lower() in BLOCKS}


def _noise(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    return np.sqrt(((ours - theirs) ** 2).mean(-1)) / theirs.std()


@pytest.mark.parametrize(("twin", "case", "kinds"), CASES)
def test_experts_in_blocks_compute_what_these_mean(twin: Twin, case: Case, kinds: Mapping[str, str], tmp_path: Path) -> None:
    file, logits, blocks = _meant(tmp_path, twin, case, kinds)
    ids = case.prompts()[-1]
    assert parity.difference(parity.session(file, tmp_path / "f32").logits(ids), logits) <= EXACT

    done = through_passes(file)
    feeds = {"input_ids": np.array([ids]), "attention_mask": np.ones((1, len(ids)), np.int64)}
    feeds |= {v.name: np.zeros([{"B": 1, "P": 0}.get(str(d), d) for d in v.type.shape], np.float32)
              for v in done.graph.inputs if v.name.startswith("past")}
    assert parity.difference(reference.evaluate(done.graph, feeds, done.checkpoint)[0][0], logits) <= EXACT

    artifact = compile_model(file, tmp_path / "auto")
    packed = Session.open(tmp_path / "auto", threads=1).logits(ids)
    assert float(np.sqrt((_noise(packed, logits) ** 2).mean())) <= NOISE
    held = {row["tensor"]: row["held"] for row in artifact.manifest["tensors"]}
    assert {n for n, how in held.items() if how == "packed"} == blocks
    assert artifact.summary["packed"] == len(blocks) and artifact.summary["dequantised"] == 0


@pytest.mark.parametrize("kinds", [KINDS["Q4_0"], KINDS["Q4_K_M"]], ids=["Q4_0", "Q4_K_M"])
def test_where_two_of_four_work_most_tokens_choose_the_same(kinds: Mapping[str, str], tmp_path: Path) -> None:
    file, logits, _ = _meant(tmp_path, mixtral.GGUF, WIDE, kinds)
    assert parity.difference(parity.session(file, tmp_path / "f32").logits(WIDE.prompts()[-1]), logits) <= EXACT
    compile_model(file, tmp_path / "auto")
    packed = Session.open(tmp_path / "auto", threads=1).logits(WIDE.prompts()[-1])
    assert float(np.median(_noise(packed, logits))) <= CHOSEN


def test_f32_weights_are_reported_as_dequantised(tmp_path: Path) -> None:
    file, _, blocks = _meant(tmp_path, mixtral.GGUF, WIDE, KINDS["Q4_K_M"])
    artifact = compile_model(file, tmp_path / "out", weights="f32")
    held = {row["tensor"]: row["held"] for row in artifact.manifest["tensors"]}
    assert {n for n, how in held.items() if how == "dequantised to f32"} == blocks
    assert held["blk.0.ffn_gate_inp.weight"] == "float"


def test_blocks_beside_floats_are_dequantised_and_said_to_be(tmp_path: Path) -> None:
    """No kernel takes an expert whose gate is in blocks and whose down is not."""
    kinds = {"down_exps": "F32", "exps": "Q4_0"}
    file, logits, _ = _meant(tmp_path, mixtral.GGUF, ALL_WORK, kinds)
    artifact = compile_model(file, tmp_path / "out")
    held = {row["tensor"]: row["held"] for row in artifact.manifest["tensors"]}
    assert held["blk.0.ffn_gate_exps.weight"] == held["blk.3.ffn_up_exps.weight"] == "dequantised to f32"
    assert held["blk.0.ffn_down_exps.weight"] == "float" and held["blk.0.attn_q.weight"] == "packed"
    assert artifact.summary["dequantised"] == 8
    assert any(e["pass_"] == "pack-experts" and not e["applied"] and "f32 has no blocks" in e["says"]
               for e in artifact.manifest["journal"])
    packed = Session.open(tmp_path / "out", threads=1).logits(ALL_WORK.prompts()[-1])
    assert float(np.sqrt((_noise(packed, logits) ** 2).mean())) <= NOISE
