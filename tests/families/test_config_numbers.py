"""A number that cannot be meant is refused by its key's name, for every numeric key that llama declares."""
from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from family_cases import llama
from refusals import refused, refused_config
from tiny_models import write_folder

from uaii.compiler import compile_model
from uaii.frontend.config import COUNT, FLAG, LAYERS, LENGTH, NUMBER, POSITIVE, REQUIRED, SIZE, Key
from uaii.frontend.families.llama import LlamaConfig
from uaii.frontend.rope import PARAMS
from uaii.ir.diag import Diagnostic

PLAIN = llama.PLAIN
NUMERIC = (SIZE, LAYERS, LENGTH, COUNT, POSITIVE, NUMBER)
WRONG = {"nan": math.nan, "infinite": math.inf, "minus-infinite": -math.inf, "negative": -1, "negative-half": -0.5,
         "huge": 10**30, "many-digits": 10**400, "huge-float": 1e300, "text": "64", "empty-text": "", "list": [64],
         "object": {"value": 64}, "true": True, "false": False}
ENTRIES = [e for klass in reversed(LlamaConfig.__mro__) for e in vars(klass).values() if isinstance(e, Key)]
KEYS = [(name, e) for e in ENTRIES for name in e.hf if e.kind in NUMERIC]
FULL: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0}, "dynamic": {"factor": 4.0}, "llama3": llama.LLAMA3,
    "yarn": {"factor": 4.0, llama.ORIGINAL: 32, "beta_fast": 8.0, "beta_slow": 2.0, "attention_factor": 1.2, "mscale": 0.7,
             "mscale_all_dim": 1.4, "truncate": True},
}
RECORDS = ("rope_scaling", "rope_parameters")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("numbers") / "model", PLAIN)


def test_the_loops_below_cover_what_is_declared() -> None:
    assert {"hidden_size", "num_hidden_layers", "rms_norm_eps", "head_dim", "vocab_size"} <= {name for name, _ in KEYS}
    others = ("default", "longrope")  # one has no parameters, the other is Phi's
    assert {kind: set(FULL[kind]) for kind in FULL} == {kind: set(PARAMS[kind]) for kind in PARAMS if kind not in others}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize(("name", "entry"), KEYS, ids=[name for name, _ in KEYS])
def test_a_wrong_number_is_refused(name: str, entry: Key, wrong: str, folder: Path) -> None:
    error = refused_config(folder, {**PLAIN.config, name: WRONG[wrong]})
    assert (error.exit_code, error.code) in {(4, "F104"), (4, "H310")}
    assert name in error.says or wrong == "many-digits"


@pytest.mark.parametrize(("name", "entry"), KEYS, ids=[name for name, _ in KEYS])
def test_zero_is_refused(name: str, entry: Key, folder: Path) -> None:
    assert entry.kind != COUNT
    assert refused_config(folder, {**PLAIN.config, name: 0}).code == "F104"


@pytest.mark.parametrize(("name", "entry"), KEYS, ids=[name for name, _ in KEYS])
def test_null_means_what_is_declared_or_is_refused(name: str, entry: Key, folder: Path, tmp_path: Path) -> None:
    if name in ("head_dim", "num_key_value_heads"):
        made = compile_model(write_folder(tmp_path / "null", PLAIN.set("null", **{name: None})), tmp_path / "out")
        assert (made.manifest["head_dim"], made.manifest["kv_heads"]) == (16, 2 if name == "head_dim" else 4)
    elif entry.null is REQUIRED:
        assert refused_config(folder, {**PLAIN.config, name: None}).code == "F104"
    else:
        assert name == "sliding_window"  # no window is what llama has


@pytest.mark.parametrize("wrong", [*WRONG, "zero", "null"])
@pytest.mark.parametrize("record", [None, *RECORDS])
def test_a_wrong_base_is_refused(record: str | None, wrong: str, folder: Path) -> None:
    value = {**WRONG, "zero": 0, "null": None}[wrong]
    config = {**PLAIN.config, "rope_theta": value} if record is None else {
        **PLAIN.config, record: {"rope_type": "default", "rope_theta": value}}
    assert refused_config(folder, config).code in ("F104", "H310")


PARAMETERS = [(record, kind, name) for record in RECORDS for kind in FULL for name in FULL[kind]]


@pytest.mark.parametrize("wrong", [*WRONG, "zero"])
@pytest.mark.parametrize(("record", "kind", "name"), PARAMETERS, ids=[".".join(p) for p in PARAMETERS])
def test_a_wrong_rope_parameter_is_refused(record: str, kind: str, name: str, wrong: str, folder: Path) -> None:
    value = {**WRONG, "zero": 0}[wrong]
    off = name in ("beta_fast", "beta_slow", "mscale", "mscale_all_dim") and value == 0 and value is not False
    if off or (PARAMS[kind][name][0] is FLAG and isinstance(value, bool)):
        return  # zero means "not given" there, as in transformers; a flag is a boolean
    error = refused_config(folder, {**PLAIN.config, record: {"rope_type": kind, **FULL[kind], name: value}})
    assert (error.exit_code, error.code) in {(4, "F104"), (4, "H310")}
    assert name in error.says or wrong == "many-digits"


@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize("value", ["yarn", ["yarn"], 4.0, True, "", [], 0, False], ids=repr)
def test_a_record_that_is_no_object_is_refused(record: str, value: Any, folder: Path) -> None:
    error = refused_config(folder, {**PLAIN.config, record: value})
    assert (error.code, error.exit_code, record in error.says) == ("F104", 4, True)


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k in FULL for n in FULL[k] if k != "yarn" and n != llama.ORIGINAL])
def test_a_rope_parameter_that_is_needed_must_be_there(kind: str, name: str, folder: Path) -> None:
    record = {k: v for k, v in FULL[kind].items() if k != name}
    error = refused_config(folder, {**PLAIN.config, "rope_scaling": {"type": kind, **record}})
    assert (error.code, error.exit_code, error.says) == ("F102", 4, f"rope_scaling of type {kind} lacks '{name}'")


@pytest.mark.parametrize("word", ["type", "rope_type"])
@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize("kind", ["foo", "su", "spiral", "longrope", "ntk", 4, ["yarn"], True])
def test_an_unknown_rope_type_is_refused(kind: Any, record: str, word: str, folder: Path) -> None:
    error = refused_config(folder, {**PLAIN.config, record: {word: kind, "factor": 2.0}})
    assert (error.code, error.exit_code) in {("F111", 3), ("F104", 4)}
    assert error.says == f"unsupported rope_scaling.type={kind}" or not isinstance(kind, str)
    assert f"config.json: {record} = {json.dumps({word: kind, 'factor': 2.0})}" in str(error)


CONTRADICTIONS: dict[str, dict[str, Any]] = {
    "two types": {"rope_scaling": {"type": "linear", "rope_type": "dynamic", "factor": 2.0}},
    "two types in parameters": {"rope_parameters": {"type": "linear", "rope_type": "default", "factor": 2.0}},
    "two records": {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "linear", "factor": 4.0}},
    "a band upside down": {"rope_scaling": {"rope_type": "llama3", **llama.LLAMA3, "low_freq_factor": 8.0}},
    "an empty band": {"rope_scaling": {"rope_type": "llama3", **llama.LLAMA3, "low_freq_factor": 4.0}},
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_contradictions_are_refused(name: str, folder: Path) -> None:
    error = refused_config(folder, {**PLAIN.config, **CONTRADICTIONS[name]})
    assert (error.code, error.exit_code) == ("F108", 4)


@pytest.mark.parametrize("keys", [{"factor": 2.0, "beta": 1}, {"factor": 2.0, "low_freq_factor": 1.0},
                                  {"factor": 2.0, "finetuned": True}])
def test_a_stray_rope_parameter_is_refused(keys: dict[str, Any], folder: Path) -> None:
    stray = list(keys)[1]
    error = refused_config(folder, {**PLAIN.config, "rope_scaling": {"type": "linear", **keys}})
    assert (error.code, error.says) == ("F101", f"rope_scaling.{stray} is not a parameter of rope type linear")


def test_a_base_per_layer_type_is_refused(folder: Path) -> None:
    record = {"full_attention": {"rope_type": "default", "rope_theta": 1e6},
              "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
    assert refused_config(folder, {**PLAIN.config, "rope_parameters": record}).code == "F109"


@pytest.mark.parametrize("name", ["foo", "silu_and_mul", "SiLU", "tanh", ""])
def test_an_unknown_activation_is_refused(name: str, folder: Path) -> None:
    error = refused_config(folder, {**PLAIN.config, "hidden_act": name})
    assert (error.code, error.exit_code, error.says) == ("F110", 3, f"unsupported hidden_act={name}")


@pytest.mark.parametrize("value", [None, 1, True, ["silu"]])
def test_an_activation_that_is_no_name_is_refused(value: Any, folder: Path) -> None:
    assert refused_config(folder, {**PLAIN.config, "hidden_act": value}).code == "F104"


@pytest.mark.parametrize("name", ["attention_bias", "mlp_bias", "tie_word_embeddings"])
@pytest.mark.parametrize("value", [None, 0, 1, "true", []])
def test_a_flag_that_is_no_boolean_is_refused(name: str, value: Any, folder: Path) -> None:
    assert refused_config(folder, {**PLAIN.config, name: value}).code == "F104"


# Sizes that the tensors agree with, and that still make no model.
@pytest.mark.parametrize("sizes", [{"num_key_value_heads": 3}, {"num_key_value_heads": 8}, {"head_dim": 15},
                                   {"num_attention_heads": 5, "num_key_value_heads": 2, "head_dim": 16}], ids=str)
def test_heads_that_do_not_divide_are_refused(sizes: dict[str, int], tmp_path: Path) -> None:
    error = refused(write_folder(tmp_path / "model", PLAIN.set("odd", **sizes)))
    assert (error.code, error.exit_code) == ("F107", 4)


@pytest.mark.parametrize("sizes", [{"num_attention_heads": 5}, {"num_attention_heads": 3, "num_key_value_heads": 3}], ids=str)
def test_a_width_that_the_heads_do_not_divide_is_refused(sizes: dict[str, int], folder: Path) -> None:
    assert refused_config(folder, {**PLAIN.config, **sizes}).exit_code == 4


@pytest.mark.parametrize("head_dim", [2, 4, 6, 12, 20])
def test_heads_of_an_unusual_width_work_or_are_refused(head_dim: int, tmp_path: Path) -> None:
    for scaling in ({}, {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, {"rope_scaling": {"type": "yarn", **FULL["yarn"]}}):
        case = PLAIN.set("odd", head_dim=head_dim, **scaling)
        try:
            compile_model(write_folder(tmp_path / "model", case), tmp_path / "out")
        except Diagnostic as error:
            assert error.exit_code == 3, error
