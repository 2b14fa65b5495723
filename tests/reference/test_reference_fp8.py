"""FP8 weights in blocks against transformers' own dequantisation and torch's codes, bit for bit."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from family_cases.deepseek_v3 import SHORT
from fp8_folder import DECLARED, quantised, write_fp8

from uaii.backends.recipes import E4M3, evaluate
from uaii.compiler import through_passes
from uaii.frontend.open import open_checkpoint

pytestmark = pytest.mark.reference


def test_codes_are_those_of_torch() -> None:
    import torch

    theirs = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float32).numpy()
    np.testing.assert_array_equal(E4M3, theirs)


def test_values_are_those_of_transformers(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, FineGrainedFP8Config

    stored, _ = quantised(SHORT, (8, 8))  # transformers takes whole blocks only
    folder = write_fp8(tmp_path, SHORT, stored, quantization_config=DECLARED | {"weight_block_size": [8, 8]})
    how = FineGrainedFP8Config(dequantize=True, weight_block_size=(8, 8))
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, quantization_config=how).state_dict()
    graph, ckpt = through_passes(folder).graph, open_checkpoint(folder)
    for ours, name in (("0.attn.o", "0.self_attn.o_proj.weight"), ("1.moe.fc2", "1.mlp.experts.down_proj")):
        got = evaluate(graph.weights[ours].recipe, ckpt)
        np.testing.assert_array_equal(got, theirs[f"model.layers.{name}"].numpy())
