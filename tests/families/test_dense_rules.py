"""What Qwen, Mistral, Granite, SmolLM 3 and OLMo do not leave to guesses: defaults, nulls, contradictions, stray tensors."""
from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from family_cases import granite, llama, mistral, olmo, olmo2, olmo3, qwen2, qwen3, smollm3
from refusals import refused, refused_config, refused_tensors
from tiny_models import Case, Config, write_folder

from uaii.frontend.family import registry


def _read(config: Config) -> Any:
    """A family's reading of a configuration, without tensors."""
    family = registry()[0][config["model_type"]]
    checkpoint: Any = SimpleNamespace(format="hf", config_file="config.json", metadata=config)
    return family.config(family.name, checkpoint)


def _windows(case: Case, **keys: Any) -> list[int]:
    return [int(w) for w in _read(case.set("windows", **keys).config).windows]


def test_an_absent_window_is_4096_for_mistral_and_null_is_none() -> None:
    assert _windows(mistral.WINDOW, sliding_window=...) == [4096] * 4
    assert _windows(mistral.WINDOW, sliding_window=None) == [0] * 4


def test_only_layers_at_max_window_layers_and_above_slide() -> None:
    assert _windows(qwen2.WINDOW, max_window_layers=2) == [0, 0, 8, 8]
    assert _windows(qwen3.WINDOW, num_hidden_layers=30, max_window_layers=...) == [0] * 28 + [8] * 2
    assert _windows(qwen2.WINDOW, sliding_window=...) == [0] + [4096] * 3
    assert _windows(qwen2.WINDOW, use_sliding_window=False) == [0] * 4


def test_olmo3_slides_on_three_layers_of_four() -> None:
    assert _windows(olmo3.PLAIN, num_hidden_layers=9, sliding_window=...) == [4096] * 3 + [0] + [4096] * 3 + [0, 4096]


@pytest.mark.parametrize(("case", "key", "value"), [
    (qwen2.PLAIN, "num_key_value_heads", 32), (qwen3.PLAIN, "num_key_value_heads", 32),
    (mistral.WINDOW, "num_key_value_heads", 8), (smollm3.PLAIN, "num_key_value_heads", 4),
    (granite.PLAIN, "num_key_value_heads", 4), (olmo.PLAIN, "num_key_value_heads", 4),
    (qwen3.PLAIN, "head_dim", 128), (qwen2.PLAIN, "head_dim", 16), (qwen2.PLAIN, "max_position_embeddings", 32768),
    (mistral.WINDOW, "max_position_embeddings", 131072), (smollm3.PLAIN, "max_position_embeddings", 32768),
    (granite.PLAIN, "max_position_embeddings", 2048), (olmo2.PLAIN, "rms_norm_eps", 1e-5), (mistral.WINDOW, "rms_norm_eps", 1e-6),
], ids=lambda x: x.config["model_type"] if isinstance(x, Case) else str(x))
def test_an_absent_key_is_the_familys_own_default(case: Case, key: str, value: float) -> None:
    names = {"num_key_value_heads": "kv_heads", "max_position_embeddings": "max_positions", "rms_norm_eps": "eps"}
    assert getattr(_read(case.set("absent", **{key: ...}).config), names.get(key, key)) == value


@pytest.mark.parametrize(("case", "keys", "code"), [
    (llama.PLAIN, {"sliding_window": 8}, "F103"),
    (qwen2.PLAIN, {"layer_types": qwen2.LISTED}, "F108"),
    (qwen2.WINDOW, {"layer_types": qwen2.LISTED, "sliding_window": None}, "F108"),
    (qwen2.WINDOW, {"layer_types": qwen2.LISTED[:3]}, "F104"),
    (qwen2.WINDOW, {"layer_types": [*qwen2.LISTED[:3], "chunked_attention"]}, "F103"),
    (qwen2.WINDOW, {"sliding_window": 0}, "F104"), (qwen2.WINDOW, {"sliding_window": -8}, "F104"),
    (qwen2.WINDOW, {"max_window_layers": -1}, "F104"), (qwen2.WINDOW, {"use_sliding_window": None}, "F104"),
    (qwen2.PLAIN, {"head_dim": None}, "F104"), (qwen2.PLAIN, {"attention_bias": True}, "F101"),
    (qwen2.PLAIN, {"use_mrope": True}, "F103"),
    (qwen3.PLAIN, {"head_dim": None}, "F104"),
    (mistral.WINDOW, {"num_key_value_heads": None}, "F104"), (mistral.WINDOW, {"attention_bias": False}, "F101"),
    (mistral.WINDOW, {"layer_types": qwen2.LISTED}, "F101"), (mistral.WINDOW, {"use_sliding_window": False}, "F101"),
    (granite.PLAIN, {"logits_scaling": 0}, "F104"), (granite.PLAIN, {"attention_multiplier": None}, "F104"),
    (granite.PLAIN, {"head_dim": None}, "F104"), (granite.PLAIN, {"num_local_experts": 4}, "F101"),
    (smollm3.PLAIN, {"no_rope_layers": [1, 0, 1, 0]}, "F104"), (smollm3.PLAIN, {"no_rope_layers": [1, 0, 2, 0, 1]}, "F104"),
    (smollm3.PLAIN, {"no_rope_layers": 4}, "F104"), (smollm3.PLAIN, {"no_rope_layer_interval": 0}, "F104"),
    (smollm3.PLAIN, {"layer_types": smollm3.LISTED}, "F108"),
    (olmo.PLAIN, {"clip_qkv": 0}, "F104"), (olmo.PLAIN, {"clip_qkv": -1.5}, "F104"), (olmo.PLAIN, {"rms_norm_eps": 1e-6}, "F101"),
    (olmo2.PLAIN, {"sliding_window": 8}, "F103"), (olmo2.PLAIN, {"clip_qkv": 8.0}, "F101"),
    (olmo3.PLAIN, {"sliding_window": None}, "F103"), (olmo3.PLAIN, {"rope_parameters": olmo3.YARN}, "F108"),
], ids=lambda x: x.config["model_type"] if isinstance(x, Case) else x if isinstance(x, str) else str(x)[:40])
def test_a_configuration_that_cannot_be_meant_is_refused(case: Case, keys: Config, code: str, tmp_path: Path) -> None:
    error = refused_config(write_folder(tmp_path / "model", case), case.set("odd", **keys).config)
    assert error.code == code
    assert any(key in str(error) for key in keys)


def _stray(case: Case, name: str) -> tuple[Case, dict[str, Any]]:
    like = next(x for n, x in case.tensors().items() if n == name.replace("bias", "weight"))
    return case, {**case.tensors(), name: like.reshape(len(like), -1)[:, 0].copy()}


@pytest.mark.parametrize(("case", "name"), [
    (qwen2.PLAIN, "model.layers.1.self_attn.o_proj.bias"), (qwen2.PLAIN, "model.layers.1.mlp.up_proj.bias"),
    (qwen3.PLAIN, "model.layers.1.self_attn.q_proj.bias"), (mistral.WINDOW, "model.layers.1.self_attn.k_proj.bias"),
    (granite.PLAIN, "model.layers.1.mlp.down_proj.bias"), (smollm3.PLAIN, "model.layers.1.self_attn.o_proj.bias"),
    (olmo.PLAIN, "model.layers.1.self_attn.v_proj.bias"), (olmo2.PLAIN, "model.layers.1.mlp.gate_proj.bias"),
], ids=lambda x: x.config["model_type"] if isinstance(x, Case) else x.split(".")[-2])
def test_a_bias_that_the_configuration_denies_is_refused(case: Case, name: str, tmp_path: Path) -> None:
    error = refused_tensors(tmp_path, *_stray(case, name))
    assert (error.code, name in error.says) == ("T202", True)


@pytest.mark.parametrize(("case", "ending"), [
    (qwen2.PLAIN, "1.self_attn.k_proj.bias"), (qwen3.PLAIN, "1.self_attn.k_norm.weight"),
    (olmo2.PLAIN, "1.self_attn.q_norm.weight"), (olmo2.PLAIN, "1.post_feedforward_layernorm.weight"),
    (qwen2.PLAIN, "lm_head.weight"),
], ids=lambda x: x.config["model_type"] if isinstance(x, Case) else x)
def test_a_missing_tensor_is_named(case: Case, ending: str, tmp_path: Path) -> None:
    error = refused_tensors(tmp_path, case, {n: x for n, x in case.tensors().items() if not n.endswith(ending)})
    assert (error.code, ending in error.says) == ("T201", True)


@pytest.mark.parametrize(("kind", "name"), [
    ("mistral3", "Mistral3ForConditionalGeneration"), ("ministral3", "Mistral3ForConditionalGeneration"),
    ("ministral", "MinistralForCausalLM"), ("granite_swa", "GraniteSWAForCausalLM")])
def test_a_relative_that_computes_something_else_is_refused_by_name(kind: str, name: str, tmp_path: Path) -> None:
    error = refused(write_folder(tmp_path / "model", mistral.WINDOW.set("other", model_type=kind, architectures=[name])))
    assert (error.code, name in error.says) == ("F121", True)
