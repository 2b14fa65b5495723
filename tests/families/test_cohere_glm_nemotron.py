"""Command R, GLM-4 and Nemotron: defaults, what a configuration must not say, and what their graphs are made of."""
from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import parity
import pytest
from family_cases import cohere, cohere2, glm, glm4, nemotron, phi3
from gguf_twin import Twin
from refusals import refused, refused_config
from tiny_models import Case, write_folder

from uaii.backends.ort.generate import generate, generate_batch
from uaii.compiler import through_passes
from uaii.frontend.family import lower
from uaii.frontend.open import open_checkpoint
from uaii.ir.ops import Attention, Gqa, LayerNorm, Rope, Rotary

FAMILIES: list[ModuleType] = [cohere, cohere2, glm, glm4, nemotron, phi3]
NAMES = [module.__name__.rpartition(".")[2] for module in FAMILIES]


@pytest.mark.parametrize("module", FAMILIES, ids=NAMES)
def test_each_row_of_a_batch_is_its_single_run(module: ModuleType, tmp_path: Path) -> None:
    case = module.PLAIN.but(lengths=(3, 7, 40))
    model = parity.session(write_folder(tmp_path / "model", case), tmp_path / "out")
    alone = [generate(model, p, max_new_tokens=6, ignore_eos=True).run().tokens for p in case.prompts()]
    assert [r.tokens for r in generate_batch(model, case.prompts(), max_new_tokens=6, ignore_eos=True)] == alone


# --- what a folder may not say

@pytest.mark.parametrize(("case", "keys", "code", "says"), [
    (cohere.PLAIN, {"logit_scale": None}, "F104", "logit_scale"),
    (cohere.PLAIN, {"head_dim": None}, "F104", "head_dim"),
    (cohere.PLAIN, {"partial_rotary_factor": 0.5}, "F101", "partial_rotary_factor"),
    (cohere.PLAIN, {"rope_scaling": {"type": "longrope", **phi3.FACTORS}}, "F111", "unsupported rope_scaling.type=longrope"),
    (cohere2.PLAIN, {"sliding_window": None}, "F103", "layers rotate only where they slide"),
    (cohere2.PLAIN, {"head_dim": 32}, "F103", "head_dim=32"),
    (cohere2.PLAIN, {"layer_switch": 2}, "F103", "sliding_window_pattern is 4"),
    (cohere2.PLAIN, {"order_of_interleaved_layers": "global_attn_first"}, "F103", "order_of_interleaved_layers"),
    (cohere2.PLAIN, {"position_embedding_type": "rope_neox"}, "F103", "position_embedding_type"),
    (cohere2.PLAIN, {"rotary_pct": 0.5}, "F103", "rotary_pct"), (cohere2.PLAIN, {"use_qk_norm": True}, "F103", "use_qk_norm"),
    (cohere2.PLAIN, {"use_parallel_block": False}, "F103", "use_parallel_block"),
    (glm.PLAIN, {"head_dim": None}, "F104", "head_dim"),
    (glm4.PLAIN, {"num_key_value_heads": None}, "F104", "num_key_value_heads"),
    (glm4.PLAIN, {"sliding_window": 8}, "F101", "sliding_window"),
    (nemotron.PLAIN, {"num_key_value_heads": ...}, "F102", "num_key_value_heads"),
    (nemotron.PLAIN, {"num_key_value_heads": None}, "F104", "num_key_value_heads"),
    (phi3.PLAIN, {"head_dim": None}, "F104", "head_dim"), (phi3.PLAIN, {"attention_bias": True}, "F103", "attention_bias"),
    (phi3.PLAIN, {"mlp_bias": True}, "F103", "mlp_bias"), (phi3.PLAIN, {"lm_head_bias": True}, "F103", "lm_head_bias"),
    (phi3.PLAIN, {"full_attn_mod": 2}, "F103", "full_attn_mod"), (phi3.PLAIN, {"interpolate_factor": 2}, "F103", "interpolate"),
    (phi3.PLAIN, {"layer_types": ["full_attention"] * 4}, "F101", "layer_types"),
])
def test_what_is_refused(case: Case, keys: dict[str, Any], code: str, says: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", case)
    error = refused_config(folder, case.set("refused", **keys).config)
    assert (error.code, says in str(error)) == (code, True), error


# --- what a GGUF may not hold

@pytest.mark.parametrize(("twin", "case", "extra"), [
    (cohere.GGUF, cohere.SHORT, "output.weight"), (cohere2.GGUF, cohere2.SHORT, "output.weight"),
    (cohere.GGUF, cohere.SHORT, "blk.0.attn_output.bias"), (glm4.GGUF, glm4.SHORT, "blk.0.attn_output.bias"),
    (phi3.GGUF, phi3.SHORT, "blk.0.attn_output.bias"), (phi3.GGUF, phi3.SHORT, "blk.0.ffn_gate.weight"),
    (glm.GGUF, glm.SHORT, "blk.0.post_ffw_norm.weight"), (nemotron.GGUF, nemotron.SHORT, "blk.0.ffn_gate.weight")])
def test_a_tensor_that_llama_cpp_refuses_too(twin: Twin, case: Case, extra: str, tmp_path: Path) -> None:
    tensors = twin.tensors(case) | {extra: np.ones((199, 64) if extra == "output.weight" else 64, np.float32)}
    error = refused(twin.write(tmp_path, case, tensors))
    assert (error.code, extra in error.says) == ("T202", True)


@pytest.mark.parametrize("window", [None, 0])
def test_a_gguf_of_command_r7b_states_its_window(window: int | None, tmp_path: Path) -> None:
    error = refused(cohere2.GGUF.write(tmp_path, cohere2.SHORT, **{"attention.sliding_window": window}))
    assert (error.code, "attention.sliding_window" in error.says) == ("F103", True)


def test_a_multimodal_glm_is_refused_by_its_key(tmp_path: Path) -> None:
    error = refused(glm4.GGUF.write(tmp_path, glm4.SHORT, **{"rope.dimension_sections": 4}))
    assert (error.code, "glm4.rope.dimension_sections" in error.says) == ("F101", True)


# --- graphs

def test_command_r_reaches_what_its_tokenizer_limit_states(tmp_path: Path) -> None:
    """Command R states max_position_embeddings 8192 and model_max_length 131072."""
    longer = cohere.PLAIN.set("longer", model_max_length=131072, max_position_embeddings=8192)
    assert lower(open_checkpoint(write_folder(tmp_path / "a", longer))).context_length == 131072
    shorter = cohere.PLAIN.set("shorter", model_max_length=512, max_position_embeddings=8192)
    assert lower(open_checkpoint(write_folder(tmp_path / "b", shorter))).context_length == 8192


def test_layers_without_a_window_have_no_positions(tmp_path: Path) -> None:
    graph = lower(open_checkpoint(write_folder(tmp_path / "model", cohere2.PLAIN))).graph
    layers = [op for op in graph.ops if isinstance(op, Attention)]
    assert [op.window for op in layers] == [8, 8, 8, 0, 8]
    assert [isinstance(op.q.op, Rope) and isinstance(op.k.op, Rope) for op in layers] == [True, True, True, False, True]
    assert all(op.interleaved for op in graph.ops if isinstance(op, Rope))


def test_the_offset_of_a_layer_norm_is_folded(tmp_path: Path) -> None:
    made = through_passes(write_folder(tmp_path / "model", nemotron.PLAIN), keep=True)
    before = [op for op in made.lowered.graph.ops if isinstance(op, LayerNorm)]
    after = [op for op in made.graph.ops if isinstance(op, LayerNorm)]
    assert [op.offset for op in before] == [1.0] * 9
    assert [(op.offset, op.weight.recipe.op, op.bias is not None) for op in after] == [(0.0, "add", True)] * 9


@pytest.mark.parametrize(("keys", "inside"), [({"head_dim": 32}, True), ({}, False)])
def test_half_a_head_rotates_inside_the_kernel_where_it_can(keys: dict[str, int], inside: bool, tmp_path: Path) -> None:
    """Of 32 features 16 fit the kernel, of 16 features 8 do not."""
    graph = through_passes(write_folder(tmp_path / "model", glm4.PLAIN.set("half", **keys))).graph
    kernels = [op for op in graph.ops if isinstance(op, Gqa)]
    assert {op.cos is not None for op in kernels} == {inside}
    assert any(isinstance(op, Rotary) for op in graph.ops) != inside
    turning = kernels if inside else [op for op in graph.ops if isinstance(op, Rotary)]
    assert {op.interleaved for op in turning} == {True}
