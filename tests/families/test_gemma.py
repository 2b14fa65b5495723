"""What the Gemma generations read in their own way, and what they refuse."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import parity
import pytest
from family_cases import gemma, gemma2, gemma3
from family_cases.gemma2 import FULL, SLIDES
from gguf_twin import Twin
from refusals import refused, refused_config
from tiny_models import Case, write_config, write_folder

from uaii.compiler import compile_model, through_passes
from uaii.ir import ops
from uaii.ir.loc import leaves, show_leaf

ALL = (gemma, gemma2, gemma3)
NAMES = [module.GGUF.arch for module in ALL]


def _graph_ops(checkpoint: Path, kind: type) -> list[Any]:
    """The ops of a kind in the model stage."""
    return [op for op in through_passes(checkpoint, keep=True).snapshots[0][1].ops if isinstance(op, kind)]


def _logits(checkpoint: Path, out: Path, case: Case) -> np.ndarray:
    return parity.session(checkpoint, out).logits(case.prompts()[-1])


# --- the norms' 1 and the embeddings' factor

@pytest.mark.parametrize("module", ALL, ids=NAMES)
def test_the_offset_of_norms_is_the_folders_alone(module: Any, tmp_path: Path) -> None:
    case = module.GGUF_CASES[0]
    folder = {op.offset for op in _graph_ops(write_folder(tmp_path / "model", case), ops.RmsNorm)}
    file = {op.offset for op in _graph_ops(module.GGUF.write(tmp_path, case), ops.RmsNorm)}
    assert (folder, file) == ({1.0}, {0.0})


# sqrt(72) = 8.485281..., whose neighbours are 8.5 in bf16 and 8.484375 in f16
@pytest.mark.parametrize(("dtype", "factor"), [("F32", float(np.float32(72 ** 0.5))), ("BF16", 8.5), ("F16", 8.484375)])
@pytest.mark.parametrize("module", ALL, ids=NAMES)
def test_the_embeddings_factor_is_rounded_to_the_tables_type(module: Any, dtype: str, factor: float, tmp_path: Path) -> None:
    [scale] = _graph_ops(write_folder(tmp_path / "model", module.PLAIN.but(dtype=dtype)), ops.Scale)
    assert scale.by == factor
    assert "config.json: hidden_size = 72" in [show_leaf(x) for x in leaves(scale.attr_locs["by"])]


def test_a_gguf_does_not_round_the_embeddings_factor(tmp_path: Path) -> None:
    [scale] = _graph_ops(gemma.GGUF.write(tmp_path, gemma.SAME), ops.Scale)
    assert scale.by == float(np.float32(72 ** 0.5))


# --- Gemma 1

def test_gelu_means_its_tanh_form_and_the_origin_says_so(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", gemma.PLAIN.set("gelu", hidden_act="gelu"))
    act = _graph_ops(folder, ops.Gated)[0]
    assert act.act == "gelu_tanh"
    assert 'config.json: hidden_act = "gelu", which gemma means as gelu_pytorch_tanh' in [
        show_leaf(x) for x in leaves(act.attr_locs["act"])]


@pytest.mark.parametrize(("key", "value"), [("hidden_activation", "silu"), ("use_bidirectional_attention", True)])
def test_gemma_refuses(key: str, value: Any, tmp_path: Path) -> None:
    error = refused(write_folder(tmp_path / "model", gemma.PLAIN.set("odd", **{key: value})))
    assert (error.code, error.exit_code, key in error.says) == ("F103", 3, True)


def test_two_activations_contradict(tmp_path: Path) -> None:
    case = gemma.PLAIN.set("two", hidden_act="silu", hidden_activation="gelu_pytorch_tanh")
    error = refused(write_folder(tmp_path / "model", case))
    assert (error.code, "hidden_act says another function" in error.says) == ("F103", True)


@pytest.mark.parametrize("module", [gemma, gemma2], ids=NAMES[:2])
def test_the_files_that_llama_cpp_refuses_are_refused(module: Any, tmp_path: Path) -> None:
    tensors = module.GGUF.tensors(module.SAME)
    for name, shape in (("output.weight", (199, 72)), ("blk.0.attn_output.bias", (72,)), ("blk.0.attn_q_norm.weight", (16,))):
        error = refused(module.GGUF.write(tmp_path, module.SAME, {**tensors, name: np.ones(shape, np.float32)}))
        assert (error.code, name in error.says) == ("T202", True)


def test_a_gemma2_labelled_llama_is_refused(tmp_path: Path) -> None:
    labelled = Twin("llama", gemma2.NAMES, gemma.gguf_keys, permuted=False, norm_offset=1.0)
    error = refused(labelled.write(tmp_path, gemma2.SAME))
    assert (error.code, "post_attention_norm.weight" in error.says) == ("T202", True)


# --- Gemma 2

PUBLISHED = {"attention_dropout": 0.0, "cache_implementation": "hybrid", "initializer_range": 0.02, "use_cache": True,
             "bos_token_id": 2, "eos_token_id": [1, 107], "pad_token_id": 0, "transformers_version": "4.42.4",
             "_attn_implementation": "eager"}


@pytest.mark.parametrize("case", [gemma.PLAIN.set("p", rope_scaling=None), gemma2.PLAIN.set("p", sliding_window_size=8),
                                  gemma3.PLAIN], ids=NAMES)
def test_the_keys_of_published_configs_are_accounted_for(case: Case, tmp_path: Path) -> None:
    compile_model(write_folder(tmp_path / "model", case.set("published", **PUBLISHED)), tmp_path / "out")


@pytest.mark.parametrize("module", [gemma2, gemma3], ids=NAMES[1:])
def test_a_window_that_is_nulled_is_refused(module: Any, tmp_path: Path) -> None:
    error = refused(write_folder(tmp_path / "model", module.PLAIN.set("null", sliding_window=None)))
    assert (error.code, error.exit_code) == ("F103", 3)


def test_a_second_window_must_agree(tmp_path: Path) -> None:
    error = refused(write_folder(tmp_path / "model", gemma2.PLAIN.set("two", sliding_window_size=9)))
    assert (error.code, "sliding_window_size" in error.says) == ("F103", True)


def test_a_gguf_without_the_keys_has_gemma2s_caps_and_window(tmp_path: Path) -> None:
    case = gemma2.SAME.set("defaults", attn_logit_softcapping=50.0, final_logit_softcapping=30.0, sliding_window=4096)
    keys = ("attention.sliding_window", "attn_logit_softcapping", "final_logit_softcapping")
    file = gemma2.GGUF.write(tmp_path, case, **dict.fromkeys(keys))
    folder = write_folder(tmp_path / "model", case)
    assert parity.difference(_logits(file, tmp_path / "a", case), _logits(folder, tmp_path / "b", case)) < 1e-4


@pytest.mark.parametrize(("key", "value"), [("rope.freq_base_swa", 5e5), ("attention.sliding_window", 0)])
def test_gemma2_files_that_would_compute_something_else_are_refused(key: str, value: Any, tmp_path: Path) -> None:
    assert refused(gemma2.GGUF.write(tmp_path, gemma2.SAME, **{key: value})).code == "F103"


# --- Gemma 3

@pytest.mark.parametrize("names", [{"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"]},
                                   {"model_type": "gemma3", "architectures": None, "vision_config": {}}], ids=["class", "config"])
def test_the_multimodal_model_is_refused_as_vision(names: dict[str, Any], tmp_path: Path) -> None:
    case = gemma3.PLAIN.set("vision", **names, text_config=gemma3.BASE)
    error = refused(write_folder(tmp_path / "model", case))
    assert (error.code, error.exit_code) == ("F121", 3)
    assert error.why.endswith("is a vision model")


def test_scores_are_not_capped_in_gemma3(tmp_path: Path) -> None:
    error = refused(write_folder(tmp_path / "model", gemma3.PLAIN.set("cap", attn_logit_softcapping=50.0)))
    assert (error.code, error.says) == ("F103", "unsupported attn_logit_softcapping=50.0; gemma3 is built for null")


def test_a_saved_pattern_that_is_not_in_effect_is_refused(tmp_path: Path) -> None:
    case = gemma3.PLAIN.set("saved", sliding_window_pattern=..., _sliding_window_pattern=3)
    error = refused(write_folder(tmp_path / "model", case))
    assert (error.code, "_sliding_window_pattern=3" in error.says) == ("F103", True)
    write_config(tmp_path / "model", {**case.config, "_sliding_window_pattern": 6})
    compile_model(tmp_path / "model", tmp_path / "out")


DEFAULT = {"rope_type": "default", "rope_theta": 1e6}
ROPES: dict[str, tuple[str, dict[str, Any]]] = {
    "flat": ("F108", {"rope_parameters": DEFAULT}),
    "flat beside nested": ("F108", {"rope_parameters": {FULL: DEFAULT, "rope_theta": 1e6}}),
    "older word": ("F108", {"rope_scaling": {"type": "linear", "factor": 8.0}}),
    "said twice": ("F108", {"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "rope_parameters": {FULL: DEFAULT}}),
    "original outside": ("F108", {"original_max_position_embeddings": 64}),
    "unknown layers": ("F103", {"rope_parameters": {"chunked_attention": DEFAULT}}),
    "no object": ("F104", {"rope_parameters": [DEFAULT]}),
    "no objects": ("F104", {"rope_parameters": {FULL: 1e6}}),
    "no scaling object": ("F104", {"rope_scaling": "linear"}),
    "stray parameter": ("F101", {"rope_parameters": {SLIDES: {**DEFAULT, "factor": 8.0}}}),
    "local base": ("F104", {"rope_local_base_freq": -1.0}),
}


@pytest.mark.parametrize("name", ROPES)
def test_rotations_that_cannot_be_meant_are_refused(name: str, tmp_path: Path) -> None:
    code, keys = ROPES[name]
    folder = write_folder(tmp_path / "model", gemma3.PLAIN)
    error = refused_config(folder, {**gemma3.BASE, **keys})
    assert (error.code, error.exit_code) == (code, 3 if code in ("F101", "F103") else 4)
    assert next(iter(keys)) in str(error)


def test_layers_have_the_rotation_of_their_type(tmp_path: Path) -> None:
    case = gemma3.PLAIN.set("scaled", rope_scaling={"rope_type": "linear", "factor": 8.0}, rope_local_base_freq=2e4)
    found = [(op.theta, op.scaling and op.scaling.kind) for op in _graph_ops(write_folder(tmp_path / "model", case), ops.Rope)]
    full, sliding = (1e6, "linear"), (2e4, None)
    assert found == [x for i in range(7) for x in 2 * [full if i in (2, 5) else sliding]]


@pytest.mark.parametrize(("keys", "like"), [
    ({"rope.freq_base_swa": 3e4}, {"rope_local_base_freq": 3e4}),
    ({"attention.sliding_window_pattern": 2}, {"sliding_window_pattern": 2}),
    ({"attention.sliding_window_pattern": [False, True, True, False, True, True, True]},
     {"layer_types": [FULL, SLIDES, SLIDES, FULL, SLIDES, SLIDES, SLIDES]}),
    ({"attention.sliding_window": None}, {"sliding_window_pattern": 1}),
    ({"rope.freq_base": None}, {"rope_theta": 1e4}),
], ids=["local-base", "pattern", "pattern-list", "no-window", "no-base"])
def test_the_keys_of_a_gguf_mean_the_folders(keys: dict[str, Any], like: dict[str, Any], tmp_path: Path) -> None:
    file, folder = gemma3.GGUF.write(tmp_path, gemma3.SAME, **keys), write_folder(tmp_path / "m", gemma3.SAME.set("like", **like))
    case = gemma3.SAME
    ours, plain = _logits(file, tmp_path / "a", case), _logits(gemma3.GGUF.write(tmp_path / "plain", case), tmp_path / "b", case)
    assert parity.difference(ours, _logits(folder, tmp_path / "c", case)) < 1e-4
    assert parity.difference(ours, plain) > 10 * parity.TOLERANCE
