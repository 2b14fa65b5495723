"""Tiny llama checkpoints with a tokenizer, good and broken, for the commands that only read headers."""
from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from family_cases import llama
from raw_gguf import Raw, gguf_bytes
from raw_safetensors import entry, st_bytes
from tiny_models import Arrays, Case, write_config, write_folder, write_weights
from tiny_tokenizers import t0, t0_gguf

CASE: Case = llama.PLAIN.set("cli", num_hidden_layers=2, vocab_size=288)
Make = Callable[[Path], Path]
NAMES = {"embed_tokens": "token_embd", "lm_head": "output", "input_layernorm": "attn_norm", "norm": "output_norm",
         "post_attention_layernorm": "ffn_norm", "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v",
         "o_proj": "attn_output", "gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down"}
KEYS = {"context_length": 256, "embedding_length": 64, "block_count": 2, "feed_forward_length": 96, "attention.head_count": 4,
        "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 10000.0}


def folder(path: Path, case: Case = CASE, tensors: Arrays | None = None, **keys: Any) -> Path:
    """The case as a folder with a tokenizer.json; `keys` replace config keys, `...` removes one, and leave its tensors alone."""
    write_folder(path, case.set("changed", **keys), case.tensors() if tensors is None else tensors)
    (path / "tokenizer.json").write_text(json.dumps(t0()))
    return path


def gguf_file(path: Path, arch: str = "llama", tensors: Arrays | None = None, vocab: dict[str, Any] | None = None,
              **keys: Any) -> Path:
    """The case as a GGUF file of F32 tensors; only its header is ever read, so rows keep their order. `vocab` replaces
    keys of its tokenizer."""
    path.parent.mkdir(parents=True, exist_ok=True)
    named = {f"{arch}.{k}": v for k, v in {**KEYS, **keys}.items()} | t0_gguf(**(vocab or {}))
    raws = [Raw(n, x.shape[::-1], 0, x.tobytes()) for n, x in (gguf_tensors() if tensors is None else tensors).items()]
    path.write_bytes(gguf_bytes([("general.architecture", "str", arch), *((k, _kind(v), v) for k, v in named.items())], raws))
    return path


def _kind(value: Any) -> str:
    if isinstance(value, list):
        return f"arr[{'i32' if isinstance(value[0], int) else 'str'}]"
    return {int: "u32", float: "f32", str: "str"}[type(value)]


def gguf_tensors() -> Arrays:
    """The case's tensors under llama.cpp's names."""
    return {_theirs(name): x for name, x in CASE.tensors().items()}


def gguf_without(part: str) -> Arrays:
    """The same without the tensors whose names hold `part`."""
    return {n: x for n, x in gguf_tensors().items() if part not in n}


def _theirs(name: str) -> str:
    *before, last, kind = name.split(".")
    layer = f"blk.{before[2]}." if before[1:2] == ["layers"] else ""
    return f"{layer}{NAMES[last]}.{kind}"


def without(*names: str) -> Arrays:
    """The case's tensors, some left out."""
    return {n: x for n, x in CASE.tensors().items() if n not in names}


def renamed(old: str, new: str) -> Arrays:
    """The case's tensors, some names changed."""
    return {n.replace(old, new): x for n, x in CASE.tensors().items()}


def config_only(path: Path, **keys: Any) -> Path:
    """A folder with config.json and nothing else."""
    path.mkdir(parents=True)
    write_config(path, CASE.set("changed", **keys).config)
    return path


def with_dtype(path: Path, dtype: str, width: int) -> Path:
    """The folder with every tensor under a dtype of `width` bytes, its values zeros."""
    folder(path)
    header, at = {}, 0
    for name, x in CASE.tensors().items():
        header[name] = entry(dtype, list(x.shape), at, at + x.size * width)
        at += x.size * width
    (path / "model.safetensors").write_bytes(st_bytes(header, bytes(at)))
    return path


def cut(path: Path, nbytes: int) -> Path:
    """The file with its last bytes gone."""
    data = path.read_bytes()
    path.write_bytes(data[:-nbytes])
    return path


def edited(path: Path, name: str, text: str | None) -> Path:
    """The folder with a file replaced, or removed."""
    if text is None:
        (path / name).unlink()
    else:
        (path / name).write_text(text)
    return path


def mixed_projections(path: Path) -> Path:
    """The folder with q in BF16 and the rest in F32, so that q, k and v cannot be stacked."""
    folder(path)
    write_weights(path, {n: ("BF16" if "q_proj" in n else "F32", x) for n, x in CASE.tensors().items()})
    return path


def sharded_without_one(path: Path) -> Path:
    """Two shards named by an index, the second missing."""
    folder(path, CASE.but(shards=2))
    (path / "model-00002-of-00002.safetensors").unlink()
    return path


def lying(path: Path) -> Path:
    """The folder with a tensor's end past the end of the file."""
    file = path / "model.safetensors"
    raw = file.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + size])
    last = max((n for n in header if n != "__metadata__"), key=lambda n: header[n]["data_offsets"][1])
    header[last]["data_offsets"][1] += 4096
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + size:])
    return path


def two_copies(path: Path) -> Path:
    """Shards with their index, and the same weights in one file beside them."""
    folder(path, CASE.but(shards=2))
    single = folder(path.parent / f"{path.name}-single") / "model.safetensors"
    shutil.copy(single, path / "model.safetensors")
    return path


def moved(path: Path, to: Path) -> Path:
    """The checkpoint under another path."""
    shutil.move(path, to)
    return to


def narrow() -> np.ndarray:
    """A q projection of the wrong shape."""
    return np.zeros((63, 64), np.float32)


GOOD: dict[str, Make] = {
    "folder": folder,
    "bf16": lambda p: folder(p, CASE.but(dtype="BF16", norms="F32")),
    "sharded": lambda p: folder(p, CASE.but(shards=2)),
    "no-tokenizer": lambda p: edited(folder(p), "tokenizer.json", None),
    "gguf": lambda p: gguf_file(p / "x.gguf"),
    "mixed": mixed_projections,
}
BAD: dict[str, Make] = {
    "unread-key": lambda p: folder(p, value_residual_scale=0.5),
    "missing-key": lambda p: folder(p, hidden_size=...),
    "key-of-a-wrong-kind": lambda p: folder(p, num_hidden_layers="two"),
    "rope-kind": lambda p: folder(p, rope_scaling={"type": "foo"}),
    "activation": lambda p: folder(p, hidden_act="foo"),
    "heads-do-not-divide": lambda p: folder(p, num_key_value_heads=3),
    "architecture": lambda p: folder(p, model_type="mamba", architectures=["MambaForCausalLM"]),
    "unknown-architecture": lambda p: folder(p, model_type="foo", architectures=["FooForCausalLM"]),
    "encoder-decoder": lambda p: folder(p, is_encoder_decoder=True),
    "no-architecture": lambda p: folder(p, model_type=..., architectures=...),
    "gptq-config": lambda p: folder(p, quantization_config={"quant_method": "gptq", "bits": 4}),
    "gptq-tensors": lambda p: folder(p, tensors=renamed("q_proj.weight", "q_proj.qweight")),
    "float8": lambda p: with_dtype(p, "F8_E4M3", 1),
    "integers": lambda p: with_dtype(p, "I64", 8),
    "missing-tensor": lambda p: folder(p, tensors=without("model.layers.1.mlp.up_proj.weight")),
    "strange-tensor": lambda p: folder(p, tensors=CASE.tensors() | {"model.layers.0.self_attn.q_norm.weight": narrow()[0]}),
    "strange-names": lambda p: folder(p, tensors={f"x.{n}": x for n, x in CASE.tensors().items()}),
    "wrong-shape": lambda p: folder(p, tensors=CASE.tensors() | {"model.layers.0.self_attn.q_proj.weight": narrow()}),
    "missing-shard": sharded_without_one,
    "config-only": config_only,
    "config-only-strange": lambda p: config_only(p, hidden_act="foo"),
    "pickle": lambda p: edited(config_only(p), "pytorch_model.bin", "x"),
    "cut-weights": lambda p: cut(folder(p) / "model.safetensors", 100).parent,
    "cut-header": lambda p: edited(folder(p), "model.safetensors", "\x09"),
    "broken-config": lambda p: edited(folder(p), "config.json", "{"),
    "adapter": lambda p: edited(folder(p), "adapter_config.json", "{}"),
    **{f"{m}-config": lambda p, m=m: folder(p, quantization_config={"quant_method": m})
       for m in ("awq", "bitsandbytes", "fp8", "mxfp4", "compressed-tensors")},
    "lfs-pointer": lambda p: edited(folder(p), "model.safetensors", "version https://git-lfs.github.com/spec/v1\n"
                                    f"oid sha256:{'0' * 64}\nsize 4976698672\n"),
    "html-page": lambda p: edited(folder(p), "model.safetensors", "<!doctype html><html><body>Not found</body></html>"),
    "lying-offsets": lambda p: lying(folder(p)),
    "config-a-list": lambda p: edited(folder(p), "config.json", "[]"),
    "nan": lambda p: folder(p, rms_norm_eps=float("nan")),
    "negative": lambda p: folder(p, num_attention_heads=-4),
    "huge": lambda p: folder(p, num_hidden_layers=10 ** 9),
    "two-copies": two_copies,
    "adapter-only": lambda p: edited(edited(edited(folder(p), "adapter_config.json", "{}"), "model.safetensors", None),
                                     "config.json", None),
    "remote-code": lambda p: folder(p, model_type="foo", auto_map={"AutoModelForCausalLM": "modeling_foo.FooForCausalLM"}),
    "rwkv": lambda p: folder(p, model_type="rwkv", architectures=["RwkvForCausalLM"]),
    "jamba": lambda p: folder(p, model_type="jamba", architectures=["JambaForCausalLM"]),
    "llava": lambda p: folder(p, model_type="llava", architectures=["LlavaForConditionalGeneration"]),
    "whisper": lambda p: folder(p, model_type="whisper", architectures=["WhisperForConditionalGeneration"]),
    "t5": lambda p: folder(p, model_type="t5", architectures=["T5ForConditionalGeneration"]),
    "deepseek": lambda p: folder(p, model_type="deepseek_v3", architectures=["DeepseekV3ForCausalLM"]),
    "gguf-cut": lambda p: cut(gguf_file(p / "x.gguf"), 1000),
    "gguf-architecture": lambda p: gguf_file(p / "x.gguf", "foo"),
    "gguf-cut-architecture": lambda p: cut(gguf_file(p / "x.gguf", "foo"), 1000),
    "gguf-unread-key": lambda p: gguf_file(p / "x.gguf", logit_scale=0.5),
    "gguf-missing-tensor": lambda p: gguf_file(p / "x.gguf", tensors=gguf_without("ffn_up")),
    "gguf-no-tensors": lambda p: gguf_file(p / "x.gguf", tensors={}),
    "broken-tokenizer": lambda p: edited(folder(p), "tokenizer.json", "{"),
    "broken-generation-config": lambda p: edited(folder(p), "generation_config.json", "{"),
    "gguf-broken-vocabulary": lambda p: gguf_file(p / "x.gguf", vocab={"tokens": None}),
    "not-a-gguf": lambda p: edited(gguf_file(p / "x.gguf").parent, "x.gguf", "version https://git-lfs\nsize 5\n") / "x.gguf",
}
