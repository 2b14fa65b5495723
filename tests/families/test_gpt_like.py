"""GPT-2 and the models with partial rotation or parallel branches: what they share, what is refused, what may be left out."""
from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import parity
import pytest
from family_cases import falcon, gpt2, gpt_neox, llama, phi, stablelm, starcoder2
from refusals import refused, refused_config, refused_tensors
from tiny_models import Case, Config, write_folder

from uaii.backends.ort.generate import generate, generate_batch
from uaii.compiler import compile_model, through_passes
from uaii.frontend.family import lower
from uaii.frontend.open import open_checkpoint
from uaii.ir.core import Graph
from uaii.ir.diag import Diagnostic, Usage
from uaii.ir.ops import Gqa, LayerNorm, Linear, Rope, Rotary

FAMILIES: list[ModuleType] = [falcon, gpt2, gpt_neox, phi, stablelm, starcoder2]
NAMES = [module.__name__.rpartition(".")[2] for module in FAMILIES]


def _lowered(case: Case, path: Path) -> Graph:
    return lower(open_checkpoint(write_folder(path / "model", case))).graph


def _linears(graph: Graph, part: str) -> list[Linear]:
    """One product per layer, by the end of its weight's name."""
    return [op for op in graph.ops if isinstance(op, Linear) and op.weight.name.endswith(part)]


# --- learned positions

@pytest.mark.parametrize("module", FAMILIES, ids=NAMES)
def test_each_row_of_a_padded_batch_is_its_single_run(module: ModuleType, tmp_path: Path) -> None:
    """Learned positions show a row that counts its neighbour's tokens, which rotation hides."""
    case = module.PLAIN.but(lengths=(3, 7, 40))
    model = parity.session(write_folder(tmp_path / "model", case), tmp_path / "out")
    alone = [generate(model, p, max_new_tokens=6, ignore_eos=True).run().tokens for p in case.prompts()]
    assert [r.tokens for r in generate_batch(model, case.prompts(), max_new_tokens=6, ignore_eos=True)] == alone


def test_positions_end_where_their_table_does(tmp_path: Path) -> None:
    case = gpt2.PLAIN.set("short", n_positions=32, n_ctx=32)
    model = parity.session(write_folder(tmp_path / "model", case), tmp_path / "out")
    assert model.context_length == 32
    with pytest.raises(Usage) as caught:
        model.logits([5] * 33)
    assert caught.value.code == "S612"


def test_the_causal_mask_that_old_gpt2_folders_hold_is_left_out(tmp_path: Path) -> None:
    case = gpt2.SHORT.but(shapes=gpt2.bare)
    mask = {f"h.{i}.attn.bias": np.tril(np.ones((1, 1, 128, 128), np.float32)) for i in range(4)}
    mask |= {f"h.{i}.attn.masked_bias": np.full((1,), -1e4, np.float32) for i in range(4)}
    folder = write_folder(tmp_path / "model", case, case.tensors() | mask)
    plain = parity.session(write_folder(tmp_path / "plain", case), tmp_path / "plain.out")
    ids = case.prompts()[0]
    np.testing.assert_array_equal(parity.session(folder, tmp_path / "out").logits(ids), plain.logits(ids))


# --- both branches of a layer

@pytest.mark.parametrize("case", [phi.PLAIN, falcon.PLAIN, stablelm.PLAIN.set("parallel", use_parallel_residual=True)],
                         ids=["phi", "falcon", "stablelm"])
def test_parallel_branches_read_the_same_norm(case: Case, tmp_path: Path) -> None:
    graph = _lowered(case, tmp_path)
    for q, up in zip(_linears(graph, ".attn.q"), _linears(graph, ".ffn.up"), strict=True):
        assert q.x is up.x
        assert isinstance(q.x.op, LayerNorm)


@pytest.mark.parametrize("case", [gpt_neox.PLAIN, falcon.PLAIN.set("groups", **falcon.NEW)], ids=["gpt_neox", "falcon"])
def test_two_norms_of_parallel_branches_read_the_same_residual(case: Case, tmp_path: Path) -> None:
    graph = _lowered(case, tmp_path)
    for q, up in zip(_linears(graph, ".attn.q"), _linears(graph, ".ffn.up"), strict=True):
        assert q.x is not up.x
        assert isinstance(q.x.op, LayerNorm) and isinstance(up.x.op, LayerNorm)
        assert q.x.op.x is up.x.op.x


# --- part of a head

@pytest.mark.parametrize(("case", "width", "fused"), [
    (gpt_neox.PLAIN, 4, False), (gpt_neox.SHORT.set("64", hidden_size=128, num_attention_heads=2), 16, True),
    (gpt_neox.SHORT.set("all", rotary_pct=1.0), 16, True), (gpt_neox.SHORT.set("6", rotary_pct=0.375), 6, False),
    (phi.PLAIN, 16, False), (phi.SHORT.set("64", head_dim=64, partial_rotary_factor=0.25), 16, True),
    (stablelm.SHORT.set("20 of 80", hidden_size=160, num_attention_heads=2), 20, False)],
    ids=lambda x: x.name if isinstance(x, Case) else str(x))
def test_the_kernel_rotates_what_it_can_and_a_node_the_rest(case: Case, width: int, fused: bool, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", case)
    assert {op.dim for op in lower(open_checkpoint(folder)).graph.ops if isinstance(op, Rope)} == {width}
    graph = through_passes(folder).graph
    assert {op.cos is not None for op in graph.ops if isinstance(op, Gqa)} == {fused}
    assert any(isinstance(op, Rotary) for op in graph.ops) != fused


# --- refusals

ALIBI = "unsupported position_embedding_type=alibi"
REFUSED: list[tuple[Case, Config, str, str]] = [
    (gpt2.PLAIN, {"add_cross_attention": True}, "F103", "add_cross_attention=True"),
    (gpt2.PLAIN, {"hidden_size": 128}, "F108", "n_embd=64 and hidden_size=128"),
    (gpt2.PLAIN, {"activation_function": "foo"}, "F110", "unsupported activation_function=foo"),
    (falcon.PLAIN, {"alibi": True}, "F112", ALIBI),
    (llama.PLAIN, {"position_embedding_type": "alibi"}, "F112", ALIBI),
    (falcon.PLAIN, {"new_decoder_architecture": True, "num_kv_heads": 1, "parallel_attn": False}, "F103", "parallel_attn"),
    (falcon.PLAIN, {"num_ln_in_parallel_attn": 2}, "F103", "num_ln_in_parallel_attn"),
    (falcon.PLAIN, {"num_ln_in_parallel_attn": 3}, "F103", "num_ln_in_parallel_attn"),
    (falcon.PLAIN, {"multi_query": False, "num_kv_heads": 2}, "F103", "num_kv_heads"),
    (falcon.PLAIN, {"new_decoder_architecture": True, "num_kv_heads": 3}, "F103", "num_kv_heads"),
    (falcon.PLAIN, {"apply_residual_connection_post_layernorm": True}, "F103", "apply_residual_connection_post_layernorm"),
    (gpt_neox.PLAIN, {"rope_theta": 5e5}, "F108", "rope_theta=500000.0 contradicts rotary_emb_base"),
    (gpt_neox.PLAIN, {"partial_rotary_factor": 1.0}, "F108", "partial_rotary_factor=1.0 contradicts rotary_pct"),
    (gpt_neox.PLAIN, {"rotary_pct": 0.2}, "F103", "cannot rotate 3 of 16"),
    (gpt_neox.PLAIN, {"rotary_pct": 0}, "F104", "rotary_pct"),
    (gpt_neox.PLAIN, {"rotary_pct": 1.5}, "F104", "rotary_pct"),
    (gpt_neox.PLAIN, {"rotary_pct": None}, "F104", "rotary_pct"),
    (phi.PLAIN, {"partial_rotary_factor": None}, "F104", "partial_rotary_factor"),
    (phi.PLAIN, {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": "0.5"}}, "F104", "rope_parameters"),
    (starcoder2.PLAIN, {"norm_type": "rms_norm"}, "F103", "norm_type=rms_norm"),
    (starcoder2.PLAIN, {"num_key_value_heads": None}, "F104", "num_key_value_heads"),
    (stablelm.PLAIN, {"num_key_value_heads": None}, "F104", "num_key_value_heads"),
    (stablelm.PLAIN, {"head_dim": 32}, "F101", "head_dim"),
    (llama.PLAIN, {"partial_rotary_factor": 0.5}, "F101", "partial_rotary_factor"),
]


@pytest.mark.parametrize(("case", "change", "code", "says"), REFUSED, ids=[
    f"{c.config['model_type']}-{'-'.join(map(str, change.items()))}" for c, change, _, _ in REFUSED])
def test_what_transformers_cannot_run_or_says_twice_is_refused(case: Case, change: Config, code: str, says: str,
                                                                tmp_path: Path) -> None:
    error = refused_config(write_folder(tmp_path / "model", case), {**case.config, **change})
    assert (error.code, says in error.says) == (code, True), error


def test_a_head_that_the_attention_kernel_does_not_take_is_refused_by_its_size(tmp_path: Path) -> None:
    """Heads of 12: GroupQueryAttention itself stops at the first run."""
    case = gpt2.PLAIN.set("twelve", n_embd=48)
    error = refused(write_folder(tmp_path / "model", case))
    assert error.exit_code == 3
    assert "GroupQueryAttention needs a head size that is a multiple of 8" in str(error)


@pytest.mark.parametrize(("case", "name"), [
    (phi.PLAIN, "lm_head.bias"), (phi.PLAIN, "model.layers.2.mlp.fc1.bias"), (gpt2.PLAIN, "transformer.wpe.weight"),
    (gpt_neox.PLAIN, "gpt_neox.layers.1.attention.dense.bias"), (falcon.PLAIN, "transformer.h.3.input_layernorm.bias"),
    (stablelm.PLAIN.set("large", **stablelm.LARGE), "model.layers.1.self_attn.q_layernorm.norms.2.weight"),
    (starcoder2.PLAIN, "model.layers.0.self_attn.o_proj.bias")], ids=lambda x: x if isinstance(x, str) else x.name)
def test_a_missing_tensor_is_named(case: Case, name: str, tmp_path: Path) -> None:
    error = refused_tensors(tmp_path, case, {n: x for n, x in case.tensors().items() if n != name})
    assert (error.code, name in error.says) == ("T201", True)


@pytest.mark.parametrize(("case", "extra"), [
    (falcon.PLAIN, "transformer.h.0.ln_mlp.weight"), (gpt_neox.PLAIN, "gpt_neox.layers.0.attention.bias.more"),
    (stablelm.PLAIN, "model.layers.0.self_attn.q_layernorm.norms.0.weight"),
    (phi.PLAIN, "model.layers.0.self_attn.q_layernorm.weight")], ids=lambda x: x if isinstance(x, str) else x.name)
def test_a_tensor_that_the_config_denies_is_an_error(case: Case, extra: str, tmp_path: Path) -> None:
    error = refused_tensors(tmp_path, case, case.tensors() | {extra: np.ones(16, np.float32)})
    assert (error.code, extra in error.says) == ("T202", True)


def test_a_norm_of_one_head_with_another_size_is_named(tmp_path: Path) -> None:
    case = stablelm.PLAIN.set("large", **stablelm.LARGE)
    name = "model.layers.0.self_attn.k_layernorm.norms.1.weight"
    error = refused_tensors(tmp_path, case, case.tensors() | {name: np.ones(8, np.float32)})
    assert (error.code, name in error.says) == ("T203", True)


# --- GGUF

INERT: list[tuple[ModuleType, dict[str, Any]]] = [
    (falcon, {"tensor_data_layout": "jploski"}), (stablelm, {"use_parallel_residual": True}),
    (stablelm, {"use_parallel_residual": False})]


@pytest.mark.parametrize(("module", "keys"), INERT, ids=str)
def test_what_llama_cpp_does_not_read_changes_nothing(module: ModuleType, keys: dict[str, Any], tmp_path: Path) -> None:
    case = module.GGUF_CASES[0]
    ids = case.prompts()[0]
    plain = parity.session(module.GGUF.write(tmp_path / "plain", case), tmp_path / "plain.out").logits(ids)
    noted = parity.session(module.GGUF.write(tmp_path / "noted", case, **keys), tmp_path / "noted.out").logits(ids)
    np.testing.assert_array_equal(noted, plain)


@pytest.mark.parametrize("module", [falcon, gpt_neox], ids=["falcon", "gpt_neox"])
def test_a_gguf_is_run_with_the_gelu_of_llama_cpp(module: ModuleType, tmp_path: Path) -> None:
    """The folder means the erf form, llama.cpp has the tanh form; the file is run as llama.cpp runs it."""
    graph = compile_model(module.GGUF.write(tmp_path, module.PLAIN), tmp_path / "out").manifest
    assert graph["family"] == module.PLAIN.config["model_type"]
    acts = {op.act for op in lower(open_checkpoint(tmp_path / "model.gguf")).graph.ops if hasattr(op, "act")}
    assert acts == {"gelu_tanh"}


@pytest.mark.parametrize("key", ["use_parallel_residual", "attention.layer_norm_epsilon", "context_length"])
def test_a_key_that_llama_cpp_requires_is_required(key: str, tmp_path: Path) -> None:
    with pytest.raises(Diagnostic) as caught:
        compile_model(gpt_neox.GGUF.write(tmp_path, gpt_neox.TANH, **{key: None}), tmp_path / "out")
    assert (caught.value.code, key in caught.value.says) == ("F102", True)
