"""The temperature of Ministral 3: which positions it reaches, each of its parameters, and what cannot be meant."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import parity
import pytest
from family_cases import mistral
from family_cases.ministral3 import BETA, GGUF, PLAIN, UNSCALED, YARN, rope
from family_cases.ministral3 import ORIGINAL as LENGTH
from refusals import refused, refused_config
from tiny_models import Case, Config, write_folder

from uaii.backends.ort.generate import generate_batch
from uaii.compiler import begin, rewrite
from uaii.frontend.open import open_checkpoint
from uaii.ir.text import show

EQUAL = 1e-4  # of the range
SCALE = "attention.temperature_scale"
FIRST = 16    # tokens before the temperature begins


def logits(case: Case, tmp_path: Path) -> np.ndarray:
    return parity.session(write_folder(tmp_path / case.name, case), tmp_path / f"{case.name}.out").logits(PLAIN.prompts()[-1])


def file_logits(case: Case, tmp_path: Path, **keys: Any) -> np.ndarray:
    return parity.session(GGUF.write(tmp_path, case, **keys), tmp_path / "file.out").logits(PLAIN.prompts()[-1])


@pytest.mark.parametrize("other", [rope("beta", **{BETA: 0.6}), rope("none", **{BETA: 0.0})], ids=lambda c: c.name)
def test_it_begins_past_the_original_context(other: Case, tmp_path: Path) -> None:
    a, b = logits(PLAIN, tmp_path), logits(other, tmp_path)
    assert parity.difference(a[:FIRST], b[:FIRST]) < 1e-6
    for at in (FIRST, 2 * FIRST, 99):
        assert parity.difference(a[at:at + 1], b[at:at + 1]) > parity.TOLERANCE


def test_its_length_matters_where_no_rotation_reads_it(tmp_path: Path) -> None:
    cases = [PLAIN.set(str(n), rope_parameters={**UNSCALED, LENGTH: n}) for n in (16, 17)]
    a, b = (logits(c, tmp_path) for c in cases)
    assert parity.difference(a[:16], b[:16]) < 1e-6
    assert parity.difference(a[16:17], b[16:17]) > parity.TOLERANCE


def test_without_it_the_model_is_mistral(tmp_path: Path) -> None:
    record = {k: v for k, v in YARN.items() if k != BETA}
    same = mistral.WINDOW.set("mistral", sliding_window=None, rope_parameters=record, rope_theta=..., head_dim=16)
    assert parity.difference(logits(rope("off", **{BETA: 0.0}), tmp_path), logits(same, tmp_path)) < 1e-6


@pytest.mark.parametrize("key", [SCALE, *(f"rope.scaling.{k}" for k in (
    "factor", "original_context_length", "yarn_beta_fast", "yarn_beta_slow", "yarn_log_multiplier", "attn_factor"))])
def test_each_parameter_of_a_file_matters(key: str, tmp_path: Path) -> None:
    now = GGUF.metadata(PLAIN.config).get(key, 1.0)
    moved = file_logits(PLAIN, tmp_path, **{key: now // 2 if isinstance(now, int) else now * 3})
    assert parity.difference(moved, file_logits(PLAIN, tmp_path)) > parity.TOLERANCE


def test_a_file_without_a_temperature_has_none(tmp_path: Path) -> None:
    off = file_logits(PLAIN, tmp_path, **{SCALE: None})
    assert parity.difference(off, logits(rope("off", **{BETA: 0.0}), tmp_path)) <= EQUAL


def test_the_context_of_a_silent_file_is_the_length(tmp_path: Path) -> None:
    keys = {"rope.scaling.type": "none", "rope.scaling.original_context_length": None}
    silent = file_logits(PLAIN, tmp_path, context_length=128, **keys)
    assert parity.difference(silent, file_logits(PLAIN, tmp_path, **keys | {"rope.scaling.original_context_length": 128})) == 0


def test_rows_of_a_batch_count_their_own_tokens(tmp_path: Path) -> None:
    model = parity.session(write_folder(tmp_path / "model", PLAIN), tmp_path / "out")
    prompts = [PLAIN.prompts()[-1][:n] for n in (10, 30, 60)]
    alone = [generate_batch(model, [p], max_new_tokens=12, ignore_eos=True)[0].tokens for p in prompts]
    assert [r.tokens for r in generate_batch(model, prompts, max_new_tokens=12, ignore_eos=True)] == alone


def test_it_is_computed_once_and_leaves_rotation_to_the_kernel(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_folder(tmp_path / "model", PLAIN))
    text = show(rewrite(begin(checkpoint, weights="f32")).graph)
    assert text.count("= temperature ") == 1
    assert text.count("= scale_rows ") == text.count(" gqa ") == PLAIN.config["num_hidden_layers"]
    assert "= rotary " not in text


@pytest.mark.parametrize(("record", "keys", "code", "says"), [
    ({BETA: ...}, {}, "F102", BETA), ({BETA: None}, {}, "F102", BETA), ({BETA: "0.1"}, {}, "F104", BETA),
    ({"rope_type": "default", "factor": ..., "beta_fast": ..., "beta_slow": ..., "mscale": ..., "mscale_all_dim": ...,
      LENGTH: ..., "type": ...}, {LENGTH: 32}, "F102", LENGTH),
    ({"max_position_embeddings": 512}, {}, "F108", "max_position_embeddings"), ({"attn_scale": 0.1}, {}, "F101", "attn_scale"),
    ({}, {"llama_4_scaling_beta": 0.1}, "F101", BETA), ({}, {"attention_bias": False}, "F101", "attention_bias"),
    ({}, {"layer_types": ["full_attention"] * 4}, "F101", "layer_types"), ({}, {"rope_parameters": {}}, "F102", BETA),
    ({}, {"head_dim": None}, "F104", "head_dim"), ({}, {"num_key_value_heads": None}, "F104", "num_key_value_heads"),
], ids=lambda x: ",".join(x) if isinstance(x, dict) else x)
def test_a_configuration_that_cannot_be_meant_is_refused(record: Config, keys: Config, code: str, says: str,
                                                         tmp_path: Path) -> None:
    error = refused_config(write_folder(tmp_path / "model", PLAIN), rope("odd", **record).set("odd", **keys).config)
    assert (error.code, says in error.says) == (code, True)


@pytest.mark.parametrize(("keys", "code"), [
    ({"rope.scaling.yarn_beta_fast": 0.0}, "F104"),
    ({"rope.scaling.yarn_log_multiplier": -1.0}, "F104"), ({"rope.scaling.type": "longrope"}, "F111"),
    ({"expert_count": 4}, "F103"), ({"rope.dimension_count": 8}, "F103"), ({"attention.temperature_length": 16}, "F101"),
], ids=lambda x: next(iter(x)) if isinstance(x, dict) else x)
def test_a_file_that_cannot_be_meant_is_refused(keys: dict[str, Any], code: str, tmp_path: Path) -> None:
    error = refused(GGUF.write(tmp_path, PLAIN, **keys))
    assert error.code == code
    assert next(iter(keys)) in str(error)


@pytest.mark.parametrize("kind", ["ministral3", "mistral3"])
def test_the_model_with_a_vision_tower_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    """Its published config names the class, and holds the text model's keys one level down."""
    config = {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": kind, "text_config": PLAIN.config,
              "vision_config": {"model_type": "pixtral"}, "spatial_merge_size": 2}
    error = refused_config(write_folder(tmp_path / "model", PLAIN), config)
    assert (error.code, "Mistral3ForConditionalGeneration" in error.says) == ("F121", True)
    assert "multimodal" in str(error)
