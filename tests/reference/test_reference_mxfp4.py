"""The values of MXFP4 blocks against transformers' own dequantisation, bit for bit."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from family_cases.gpt_oss import PACKED
from tiny_models import write_folder

from uaii.backends import recipes
from uaii.compiler import through_passes
from uaii.frontend.open import open_checkpoint

pytestmark = pytest.mark.reference
STEM = "model.layers.0.mlp.experts."


def test_values_are_those_of_transformers(tmp_path: Path) -> None:
    """Every byte of codes, and every exponent whose values f32 holds: from 0, where they are below f32's normal numbers."""
    import torch
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    tensors = PACKED.tensors()
    for part in ("gate_up_proj", "down_proj"):
        codes, exponents = (tensors[f"{STEM}{part}_{k}"] for k in ("blocks", "scales"))
        codes[:] = np.resize(np.arange(256), codes.shape)
        exponents[:] = np.resize(np.arange(253), exponents.shape)
    folder = write_folder(tmp_path / "model", PACKED, tensors)
    graph, ckpt = through_passes(folder, weights="f32").graph, open_checkpoint(folder)
    fc1, fc2 = (recipes.evaluate(graph.weights[f"0.moe.{n}"].recipe, ckpt) for n in ("fc1", "fc2"))
    for part, ours in (("gate_up_proj", fc1), ("down_proj", fc2)):
        theirs = convert_moe_packed_tensors(*(torch.from_numpy(tensors[f"{STEM}{part}_{k}"]) for k in ("blocks", "scales")),
                                            dtype=torch.float32)
        assert ours.dtype == np.float32
        zeros = theirs.numpy() == 0  # transformers keeps the sign of -0, which no sum can show
        bits = np.ascontiguousarray(ours.swapaxes(1, 2)).view(np.uint32), theirs.numpy().view(np.uint32)
        np.testing.assert_array_equal(*(np.where(zeros, 0, b) for b in bits))
        assert not ours.swapaxes(1, 2)[zeros].any() and zeros.mean() < 0.2
