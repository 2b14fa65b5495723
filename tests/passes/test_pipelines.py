"""The order of the passes, and what the weights option changes in it."""
from __future__ import annotations

from pathlib import Path

import pytest
import uir

from uaii.backends.onnx.capabilities import CPU
from uaii.ir.diag import Unsupported, Usage
from uaii.ir.parse import parse
from uaii.passes.base import run
from uaii.passes.pipelines import WEIGHTS, pipeline

PACKING = {"pack-linear", "pack-embedding"}


def test_stages_follow_each_other_and_the_check_is_last() -> None:
    for weights in WEIGHTS:
        names = [p.name for p in pipeline(CPU, 8, weights)]
        assert sorted(names) == sorted(set(names))
        assert names[-1] == "check-capabilities" and names.count("enter-core") == 1
        assert names.index("enter-core") < names.index("lower-attention")
        assert bool(PACKING & set(names)) == (weights != "f32")
        assert names.count("quantise-weights") == (weights in ("int8", "int4"))


def test_unknown_weights_are_refused() -> None:
    with pytest.raises(Usage) as caught:
        pipeline(CPU, 8, "int3")
    assert caught.value.code == "U020" and caught.value.says == "--weights int3 is not one of auto, f32, int8, int4"


def test_every_refusal_is_noted_once() -> None:
    cases = uir.read_cases(Path(__file__).parent / "cleanup.uir")
    (case,) = (c for c in cases if c.name.startswith("all refusals"))
    with pytest.raises(Unsupported) as caught:
        run(parse(case.before), [uir.PASSES["check-capabilities"]])
    assert [n.partition(": ")[2] for n in caught.value.notes] == [
        "cpu has no kernel for rope", "SimplifiedLayerNormalization takes offset in {0.0}, not 1.0"]
    assert caught.value.exit_code == 3
