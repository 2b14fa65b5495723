"""A checkpoint is what its config names: nothing is guessed, and nothing of the folder is run."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from family_cases import llama
from refusals import refused, refused_config
from tiny_models import write_config, write_folder, write_gguf

from uaii.cli.compile import main as compile_command
from uaii.cli.run import main as run_command
from uaii.compiler import compile_model
from uaii.frontend.family import recognise
from uaii.frontend.open import open_checkpoint

PLAIN = llama.PLAIN
REAL = sorted((Path(__file__).parent.parent / "data" / "configs").glob("*.json"))
UNSUPPORTED = "unsupported Hugging Face architecture (decoder-only CausalLM required): "
DENIED = [("mamba", "MambaForCausalLM"), ("falcon_mamba", "FalconMambaForCausalLM"), ("rwkv", "RwkvForCausalLM"),
          ("rwkv5", "Rwkv5ForCausalLM"), ("jamba", "JambaForCausalLM"), ("llava", "LlavaForConditionalGeneration"),
          ("t5", "T5ForConditionalGeneration"), ("bert", "BertForMaskedLM"), ("bert", "BertLMHeadModel"),
          ("whisper", "WhisperForConditionalGeneration"), ("bart", "BartForCausalLM"),
          ("qwen2_vl", "Qwen2VLForConditionalGeneration"), ("mllama", "MllamaForConditionalGeneration"),
          ("clip_vision_model", "CLIPVisionModel"), ("foo", "FooForCausalLM"), ("llamax", "LlamaxForCausalLM")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "model", PLAIN)


def _named(**names: Any) -> dict[str, Any]:
    kept = {k: v for k, v in PLAIN.config.items() if k not in ("model_type", "architectures")}
    return {**kept, **names}


@pytest.mark.parametrize(("kind", "arch"), DENIED)
def test_other_architectures_are_refused_even_with_llama_tensors(kind: str, arch: str, folder: Path) -> None:
    error = refused_config(folder, _named(model_type=kind, architectures=[arch]))
    assert (error.code, error.exit_code, error.says) == ("F121", 3, UNSUPPORTED + arch)
    assert 'config.json: architectures = "' + arch in str(error)


@pytest.mark.parametrize("kind", ["mamba", "t5", "bert", "whisper", "foo", "rwkv"])
def test_a_model_type_alone_is_refused_too(kind: str, folder: Path) -> None:
    error = refused_config(folder, _named(model_type=kind))
    assert (error.code, error.says) == ("F121", UNSUPPORTED + kind)


@pytest.mark.parametrize(("kind", "arch"), [
    ("llama", "LlamaForSequenceClassification"), ("llama", "LlamaModel"), ("llama", "MambaForCausalLM"),
    ("llama", "LlamaxForCausalLM"), ("llama", "GPT2LMHeadModel"), ("mamba", "LlamaForCausalLM")])
def test_model_type_and_class_must_belong_together(kind: str, arch: str, folder: Path) -> None:
    error = refused_config(folder, _named(model_type=kind, architectures=[arch]))
    assert (error.code, error.exit_code, error.says) == ("F121", 3, UNSUPPORTED + arch)


def test_an_encoder_decoder_is_refused_whatever_its_names(folder: Path) -> None:
    error = refused_config(folder, {**PLAIN.config, "is_encoder_decoder": True})
    assert (error.code, error.says) == ("F121", UNSUPPORTED + "LlamaForCausalLM")


@pytest.mark.parametrize("names", [{}, {"architectures": []}, {"model_type": None, "architectures": None}])
def test_structure_is_not_guessed_from_tensor_names(names: dict[str, Any], folder: Path) -> None:
    error = refused_config(folder, _named(**names))
    assert (error.code, error.exit_code) == ("F122", 4)
    assert "names neither model_type nor architectures" in error.says


@pytest.mark.parametrize("names", [
    {"model_type": 7}, {"model_type": ["llama"]}, {"model_type": "llama", "architectures": "LlamaForCausalLM"},
    {"model_type": "llama", "architectures": [7]}, {"model_type": "llama", "architectures": {}}])
def test_names_of_the_wrong_type_are_refused(names: dict[str, Any], folder: Path) -> None:
    assert refused_config(folder, _named(**names)).exit_code in (3, 4)


@pytest.mark.parametrize("names", [{"model_type": "llama"}, {"architectures": ["LlamaForCausalLM"]},
                                   {"model_type": "llama", "architectures": []}])
def test_either_name_is_enough(names: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    write_config(folder, _named(**names))
    assert compile_model(folder, tmp_path / "out").manifest["family"] == "llama"


@pytest.mark.parametrize("kind", ["llama", "llamax"])
def test_code_of_the_folder_is_never_run(kind: str, folder: Path, tmp_path: Path) -> None:
    trap = f"open({str(tmp_path / 'ran')!r}, 'w').close()\n"
    for name in ("modeling_x.py", "configuration_x.py", "__init__.py", "tokenization_x.py"):
        (folder / name).write_text(trap)
    auto = {"AutoConfig": "configuration_x.XConfig", "AutoModelForCausalLM": "modeling_x.XForCausalLM"}
    config = {**PLAIN.config, "model_type": kind, "auto_map": auto}
    if kind == "llama":
        write_config(folder, config)
        compile_model(folder, tmp_path / "out")
    else:
        error = refused_config(folder, {**config, "architectures": ["LlamaxForCausalLM"]})
        assert "remote code (auto_map), which is never executed" in error.hint
    assert not (tmp_path / "ran").exists()


def test_an_adapter_is_not_a_model(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")
    error = refused(folder)
    assert (error.code, error.exit_code) == ("H331", 3)
    assert "give the merged model" in error.says


@pytest.mark.parametrize("arch", ["mamba", "llamax", "bert"])
def test_other_gguf_architectures_are_refused(arch: str, tmp_path: Path) -> None:
    error = refused(write_gguf(tmp_path / "m.gguf", arch, llama.gguf_metadata(llama.BASE), llama.gguf_tensors(PLAIN)))
    assert (error.code, error.exit_code, error.says) == ("F121", 3, f"unsupported GGUF architecture: {arch}")


def test_the_command_exits_with_the_diagnostics_code(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for config, code in (({**PLAIN.config, "stray": 1}, 3), ({**PLAIN.config, "hidden_size": -1}, 4)):
        write_config(folder, config)
        result = CliRunner().invoke(compile_command, [str(folder), "-o", str(out)])
        assert (result.exit_code, result.stdout, out.exists()) == (code, "", False)
        assert "error[F10" in result.stderr
        assert "Traceback" not in result.stderr


def test_without_a_tokenizer_only_ids_can_be_given(folder: Path, tmp_path: Path) -> None:
    notes: list[str] = []
    out = tmp_path / "out"
    compile_model(folder, out, note=notes.append)
    missing = f"no HF tokenizer found in {folder} (need tokenizer.json, vocab.json+merges.txt, or tokenizer.model)"
    assert any(missing in note for note in notes)
    text = CliRunner().invoke(run_command, [str(out), "--prompt", "hello"])
    assert (text.exit_code, text.stdout) == (3, "")
    assert "error[" in text.stderr and "Traceback" not in text.stderr
    ids = CliRunner().invoke(run_command, [str(out), "--token-ids", "5,6,7", "--max-new-tokens", "4", "--format", "json"])
    assert (ids.exit_code, len(json.loads(ids.stdout)["tokens"])) == (0, 4)


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_real_configs_are_recognised_whole(path: Path, tmp_path: Path) -> None:
    """Recognised, every key accounted for, and what fails are the tensors, which are a tiny llama's or by its names."""
    folder = write_folder(tmp_path / "model", PLAIN)
    config = json.loads(path.read_text())
    assert refused_config(folder, config).code in ("T201", "T202", "T203", "T205")
    assert recognise(open_checkpoint(folder)).name == config["model_type"]
