"""A tiny checkpoint's matrices as FP8 codes with factors, as DeepSeek publishes its weights, and the values that they mean."""
from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from raw_safetensors import st_bytes
from tiny_models import Arrays, Case, Config, raw

BLOCK = (16, 24)  # no matrix of the cases is a whole number of these
DECLARED: Config = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": list(BLOCK)}
FINITE = [c for c in range(256) if c & 0x7F != 0x7F]


def meaning(code: int) -> float:
    """One code of E4M3 by its bits, spelled out."""
    bits = f"{code:08b}"
    exponent, fraction = int(bits[1:5], 2), int(bits[5:], 2)
    size = fraction * 2.0 ** -9 if exponent == 0 else (8 + fraction) * 2.0 ** (exponent - 10)
    return -size if bits[0] == "1" else size


def quantised(case: Case, block: tuple[int, int] = BLOCK) -> tuple[Arrays, Arrays]:
    """(what is stored, what it means): attention and experts as codes drawn from all finite ones, and factors around 0.3/100."""
    stored, means, table = Arrays(), Arrays(), np.array([meaning(c) for c in FINITE])
    for name, x in case.tensors().items():
        if not name.endswith("_proj.weight"):
            stored[name] = means[name] = x
            continue
        rng = np.random.RandomState(len(stored) + case.seed)
        picked = rng.randint(0, len(FINITE), x.shape)
        counts = tuple(-(-n // size) for n, size in zip(x.shape, block, strict=True))
        factors = (rng.uniform(0.5, 2.0, counts) * 0.003).astype(np.float32)
        spread = np.kron(factors, np.ones(block, np.float32))[:x.shape[0], :x.shape[1]]
        stored[name] = np.array(FINITE, np.uint8)[picked]
        stored[f"{name}_scale_inv"] = factors
        means[name] = table[picked].astype(np.float32) * spread
    return stored, means


def write_fp8(path: Path, case: Case, stored: Arrays, change: Callable[[Any], Any] = dict, **config: Any) -> Path:
    """The folder; arrays of u8 are stored as F8_E4M3. `change` edits the header's entries."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(case.config | {"quantization_config": DECLARED} | config))
    header, data = {}, b""
    for name, x in stored.items():
        part = x.tobytes() if x.dtype == np.uint8 else raw(x, case.dtype if not name.endswith("_inv") else "F32").tobytes()
        kind = "F8_E4M3" if x.dtype == np.uint8 else "F32" if name.endswith("_inv") else case.dtype
        header[name] = {"dtype": kind, "shape": list(x.shape), "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    (path / "model.safetensors").write_bytes(st_bytes(change(header), data))
    return path
