"""A quantised file computes the values that its blocks mean, packed and in f32, and says of each tensor how it is held."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import parity
import pytest
from family_cases import llama
from quantised_gguf import QUANTISES, meant, stored, write_stored

from uaii.backends import reference
from uaii.backends.ort.session import Session
from uaii.compiler import compile_model, through_passes
from uaii.ir.types import BLOCKS

WIDE = llama.PLAIN.set("wide-rows", hidden_size=256, intermediate_size=256, head_dim=64).but(lengths=(40,))
TIED = WIDE.set("tied", tie_word_embeddings=True)
EXACT = 1e-4  # of the range: the same values through two files
NOISE = 3.5e-2  # rms over the logits' std: activations rounded to 8 bits; llama.cpp has 0.02 to 0.05 on these very files
SPREAD = 0.2  # of the case's own weights, whose rows are four times as long as usual
# What llama-quantize makes of Q4_K_M, its fallbacks for odd rows among it.
MIXTURE = {"token_embd": "Q8_0", "attn_v": "Q6_K", "ffn_down": "Q5_0", "output.": "Q6_K", "attn_k": "IQ4_NL", "weight": "Q4_K"}
ALL = {kind: {"weight": kind} for kind in (*QUANTISES, *(k.upper() for k in BLOCKS if k.upper() not in QUANTISES))}
CASES = [*(pytest.param(WIDE, kinds, id=name) for name, kinds in ALL.items()), pytest.param(WIDE, MIXTURE, id="mixture"),
         *(pytest.param(TIED, ALL[name], id=f"{name}-tied") for name in ("Q8_0", "Q4_1", "Q4_K", "Q6_K", "F16"))]


@dataclass(frozen=True)
class Pair:
    """A quantised file, and the logits [S,V] of a file that holds the values it means in F32."""

    file: Path
    tensors: Mapping[str, tuple[str, np.ndarray]]
    ids: list[int]
    logits: np.ndarray


def pair(tmp_path: Path, case: Any, kinds: Mapping[str, str]) -> Pair:
    tensors, ids = stored(case, kinds, SPREAD), case.prompts()[-1]
    plain = {n: ("F32", x) for n, x in meant(tensors).items()}
    logits = parity.session(write_stored(tmp_path / "plain.gguf", case, plain), tmp_path / "plain").logits(ids)
    return Pair(write_stored(tmp_path / "model.gguf", case, tensors), tensors, ids, logits)


def _reference(given: Pair) -> np.ndarray:
    """What the packed graph means: no kernel rounds activations here."""
    done = through_passes(given.file)
    feeds = {"input_ids": np.array([given.ids]), "attention_mask": np.ones((1, len(given.ids)), np.int64)}
    for v in done.graph.inputs:
        if v.name.startswith("past"):
            feeds[v.name] = np.zeros([{"B": 1, "P": 0}.get(str(d), d) for d in v.type.shape], np.float32)
    return reference.evaluate(done.graph, feeds, done.checkpoint)[0][0]


@pytest.mark.parametrize(("case", "kinds"), CASES)
def test_a_quantised_file_computes_what_its_blocks_mean(case: Any, kinds: Mapping[str, str], tmp_path: Path) -> None:
    given = pair(tmp_path, case, kinds)
    exact = parity.session(given.file, tmp_path / "f32").logits(given.ids)
    assert parity.difference(exact, given.logits) <= EXACT

    assert parity.difference(_reference(given), given.logits) <= EXACT

    artifact = compile_model(given.file, tmp_path / "auto")
    packed = Session.open(tmp_path / "auto", threads=1).logits(given.ids)
    assert float(np.sqrt(((packed - given.logits) ** 2).mean())) <= NOISE * given.logits.std()
    blocks = {n for n, (kind, _) in given.tensors.items() if kind.lower() in BLOCKS}
    for row in artifact.manifest["tensors"]:
        kind, x = given.tensors[row["tensor"]]
        assert (row["stored"].split("[")[0], row["bytes"], row["exact"]) == (kind.lower(), x.nbytes, True)
        assert row["held"] == ("packed" if row["tensor"] in blocks else "float")
    assert artifact.summary["dequantised"] == 0 and artifact.summary["packed"] == len(blocks)


def test_f32_weights_are_reported_as_dequantised(tmp_path: Path) -> None:
    file = pair(tmp_path, WIDE, MIXTURE).file
    artifact = compile_model(file, tmp_path / "out", weights="f32")
    held = {row["tensor"]: row["held"] for row in artifact.manifest["tensors"]}
    assert held["blk.0.attn_q.weight"] == held["token_embd.weight"] == "dequantised to f32"
    assert held["blk.0.attn_norm.weight"] == "float"
