"""Signs that a Hugging Face folder holds quantised weights, in its config or in its tensor names."""
from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from uaii.frontend.checkpoint import StoredTensor
from uaii.frontend.fp8 import fp8_block
from uaii.frontend.jsonfile import said, shown
from uaii.ir.diag import Diagnostic, Unsupported
from uaii.ir.loc import File

CONVERT = "HF quantized checkpoints are not loaded. Convert to BF16 safetensors or GGUF (Q4_K / IQ4_NL) and retry."
KEYS = ("quantization_config", "compression_config", "quantization")
# What gpt-oss folders declare: experts in MXFP4, all else in floats.
MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": [
    "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
# The side tensors of each method; plain checkpoints have none of these names.
NAMES = (
    ("gptq or awq", re.compile(r"\.(qweight|qzeros|g_idx)$")),
    ("bitsandbytes", re.compile(r"\.(SCB|absmax|nested_absmax|quant_map|nested_quant_map|quant_state\..+)$")),
    ("compressed-tensors", re.compile(r"\.(weight_packed|weight_zero_point)$")),
    ("fp8", re.compile(r"\.(weight_scale_inv|weight_scale|input_scale|activation_scale)$")),
    ("mxfp4", re.compile(r"_(blocks|scales)$")),
    ("mlx", re.compile(r"\.(scales|biases)$")),
)


def quantized(method: str, where: File) -> Unsupported:
    """The refusal of a quantised folder, naming the method."""
    what = "mxfp4 convert to BF16/GGUF" if method == "mxfp4" else f"quantized safetensors: {method}"
    return Unsupported("H330", f"{what}. {CONVERT}", where, why="packed integers read as weights give fluent nonsense",
                       hint="take the publisher's unquantised repository or a GGUF of it")


def microscaled(config: Mapping[str, Any]) -> bool:
    """Whether the config declares experts in MXFP4 as gpt-oss has them."""
    return config.get("model_type") == "gpt_oss" and config.get("quantization_config") == MXFP4


def read_method(config: Mapping[str, Any]) -> str | None:
    """The quantisation that the config declares in a form that is read."""
    return "mxfp4" if microscaled(config) else "fp8" if fp8_block(config) is not None else None


def config_blockers(file: str, config: Mapping[str, Any]) -> list[Diagnostic]:
    """One refusal when the config, or the text part of it, declares a quantisation that is not read; `file` is config.json."""
    inner = config.get("text_config")
    for prefix, part in (("", config), ("text_config.", inner if isinstance(inner, dict) else {})):
        for key in KEYS:
            value = part.get(key)
            if value is not None and not (key == "quantization_config" and part is config and read_method(config)):
                return [quantized(_method(key, value), File(file, prefix + key))]
    return []


def tensor_blockers(tensors: Mapping[str, StoredTensor], read: str | None) -> list[Diagnostic]:
    """One refusal when a method's side tensors are there, blamed on the first; the first method of NAMES wins, but for the one
    that is `read`."""
    for method, pattern in NAMES:
        for name, tensor in tensors.items():
            if pattern.search(name) and method != read:
                return [quantized(method, File(str(tensor.file), f"tensor {name}"))]
    return []


def _method(key: str, value: object) -> str:
    if not isinstance(value, dict):
        return f"{key} = {said(value)}"
    method = value.get("quant_method")
    if isinstance(method, str) and method:
        return shown(method)
    if value.get("load_in_8bit") or value.get("load_in_4bit"):
        return "bitsandbytes"
    return "mlx" if key == "quantization" else f"{key} without a quant_method"
