"""A tiny llama checkpoint as a GGUF whose matrices are block-quantised, by the gguf package's own quantiser."""
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
from family_cases.llama import gguf_metadata, gguf_tensors
from tiny_models import Case


def write_quantised(path: Path, case: Case, kinds: Mapping[str, str]) -> Path:
    """`kinds` maps a part of a GGUF tensor name to its type; vectors stay F32, the first that fits decides."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in gguf_metadata(case.config).items():
        (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(f"llama.{key}", value)
    for name, x in gguf_tensors(case).items():
        kind = next((k for part, k in kinds.items() if part in name and x.ndim == 2), "F32")
        stored = gguf.GGMLQuantizationType[kind]
        data = x if kind == "F32" else gguf.quantize(np.ascontiguousarray(x, np.float32), stored)
        writer.add_tensor(name, data, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


MIXED = {"token_embd": "Q8_0", "attn_q": "Q4_0", "attn_k": "Q4_0", "attn_v": "Q4_0", "attn_output": "Q8_0",
         "ffn_gate": "Q4_1", "ffn_up": "Q4_1", "ffn_down": "Q5_0", "output": "Q4_1"}
