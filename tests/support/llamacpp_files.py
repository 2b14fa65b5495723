"""Tiny F32 GGUF files of every architecture and the ways such files differ, each to be read as llama.cpp reads it."""
from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import all_cases
import numpy as np
from family_cases import llama
from gguf_twin import LLAMA_NAMES, Twin, fused_projections
from tiny_models import Arrays, Case, prompt, values, write_gguf

LENGTH = 48  # tokens of the prompt: past every tiny window and original context
LLAMA_TWIN = Twin("llama", LLAMA_NAMES, llama.gguf_metadata, permuted=True)
LLAMA_CASES = (llama.PLAIN, llama.PLAIN.set("biases", attention_bias=True, mlp_bias=True),
               llama.PLAIN.set("one-key-head", num_key_value_heads=1), llama.PLAIN.set("tied", tie_word_embeddings=True))
# heads need not be an equal part of the width, and the other cases do not show it
WIDE = {"llama", "granite", "mistral3", "smollm3", "gpt-oss"}

Change = Callable[[Arrays, Case], Arrays]


def as_it_is(tensors: Arrays, case: Case) -> Arrays:
    """No change."""
    return tensors


@dataclass(frozen=True)
class File:
    """A GGUF file: a twin's case, keys and tensors that differ from it, and how it is written."""

    twin: Twin
    case: Case
    name: str
    keys: Mapping[str, Any] = field(default_factory=dict)
    change: Change = as_it_is
    alignment: int = 32
    parts: int = 1
    finish: Callable[[bytes], bytes] = bytes

    def but(self, name: str, **changes: Any) -> File:
        """The file under another name with some data replaced."""
        return replace(self, name=name, **changes)

    def tensors(self) -> Arrays:
        """Names and values in file order."""
        return self.change(self.twin.tensors(self.case), self.case)

    def write(self, folder: Path) -> Path:
        """The file, or the first of its parts, in `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        path = write_gguf(folder / "model.gguf", self.twin.arch, self.twin.keys(self.case, self.keys), self.tensors(),
                          alignment=self.alignment, parts=self.parts)
        path.write_bytes(self.finish(path.read_bytes()))
        return path

    def prompt(self) -> list[int]:
        """The token ids that it is run with."""
        return prompt(LENGTH, self.case.config["vocab_size"], self.case.seed)

    def seeded(self, seed: int) -> File:
        """The same file with other weights and another prompt."""
        return replace(self, case=self.case.but(seed=seed))

    def fingerprint(self) -> str:
        """Of keys, tensors and prompt: a golden of another file is recognised."""
        said = [self.twin.keys(self.case, self.keys), self.prompt(), self.alignment, self.parts]
        digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode())
        for name, x in self.tensors().items():
            digest.update(name.encode() + x.tobytes())
        return digest.hexdigest()[:16]


# --- what a variant does to the tensors

def fused(tensors: Arrays, case: Case) -> Arrays:
    """q, k and v in one tensor."""
    return fused_projections(tensors)


def biased(tensors: Arrays, case: Case) -> Arrays:
    """Biases on q, k and v, which every architecture with these tensors may have."""
    names = {n: n.replace("weight", "bias") for n in tensors if any(f".attn_{p}.weight" in n for p in "qkv")}
    return tensors | {bias: values(bias, tensors[n].shape[:1], case.seed) for n, bias in names.items()}


def head_biased(tensors: Arrays, case: Case) -> Arrays:
    """A bias on the logits."""
    return tensors | {"output.bias": values("output.bias", tensors["token_embd.weight"].shape[:1], case.seed)}


def divided(tensors: Arrays, case: Case) -> Arrays:
    """The divisors of llama3 scaling."""
    return tensors | {"rope_freqs.weight": llama.rope_freqs(case.config | {"rope_scaling": llama.LLAMA3})}


def reverse(tensors: Arrays, case: Case) -> Arrays:
    """The last tensor first."""
    return dict(reversed(tensors.items()))


def headless(tensors: Arrays, case: Case) -> Arrays:
    """No head of its own."""
    return {n: x for n, x in tensors.items() if n != "output.weight"}


def quiet(tensors: Arrays, case: Case) -> Arrays:
    """What the feed-forward part adds, made small: llama.cpp's GELU is a table in f16, whose noise many layers amplify."""
    last = "post_ffw_norm" if "blk.0.post_ffw_norm.weight" in tensors else "ffn_down"
    return {n: x * np.float32(1 / 64) if f".{last}." in n else x for n, x in tensors.items()}


def version_2(data: bytes) -> bytes:
    """The same layout under the older number."""
    return data[:4] + b"\x02" + data[5:]


def trailed(data: bytes) -> bytes:
    """Bytes after the last tensor, which nobody reads."""
    return data + b"trailing bytes" * 3


# --- the table

SCALED: dict[str, dict[str, Any]] = {
    "linear": {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    "yarn": {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32},
}
ROPE: dict[str, dict[str, Any]] = {  # shared by all: shown on one architecture
    "factor-without-type": {"rope.scaling.factor": 4.0}, "legacy-scale": {"rope.scale_linear": 4.0},
    "factor-before-legacy": {"rope.scaling.factor": 2.0, "rope.scale_linear": 4.0},
    "type-none": {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, "factor-0": {"rope.scaling.factor": 0.0},
    "attn-factor": {"rope.scaling.attn_factor": 1.5}, "yarn-attn-factor": {**SCALED["yarn"], "rope.scaling.attn_factor": 1.5},
    "yarn-unread": {**SCALED["yarn"], "rope.scaling.yarn_beta_fast": 4.0, "rope.scaling.yarn_beta_slow": 2.0,
                    "rope.scaling.yarn_attn_factor": 2.0, "rope.scaling.yarn_ext_factor": 0.5},
    "yarn-no-original": {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "context_length": 32},
    "base": {"rope.freq_base": 500000.0}, "base-absent": {"rope.freq_base": None},
    "finetuned": {"rope.scaling.finetuned": True},
}
NOISY = {("gemma", "yarn"), ("gemma2", "as-27b"), ("gemma3", "as-27b")}
PER_LAYER = ("attention.head_count", "attention.head_count_kv", "feed_forward_length")


def _windowless(arch: str) -> bool:
    return arch in ("llama", "mistral3", "qwen2", "qwen3", "smollm3", "granite", "olmo", "phi3")


def _defaults(base: File) -> dict[str, Any]:
    """Removes every key that says what llama.cpp takes without it, and the caps and windows, which mostly have defaults too."""
    keys = base.twin.keys(base.case, {})
    heads = keys["attention.head_count"]
    equal = keys["embedding_length"] // heads
    head = keys.get("attention.key_length", equal)
    default = {"attention.head_count_kv": heads, "rope.freq_base": 10000.0, "rope.dimension_count": head}
    default |= dict.fromkeys(("attention.key_length", "attention.value_length"), equal)
    capped = ("attn_logit_softcapping", "final_logit_softcapping", "attention.sliding_window")
    capped = () if base.twin.arch in ("cohere2", "gpt-oss") else capped  # their window is demanded
    return dict.fromkeys([k for k in keys if k in capped or keys[k] == default.get(k)])


def _variants(base: File) -> list[File]:
    tensors, keys, arch = base.tensors(), base.twin.keys(base.case, {}), base.twin.arch
    rotates, split = "position_embd.weight" not in tensors, "blk.0.attn_q.weight" in tensors
    out = [base.but(name, keys=record) for name, record in SCALED.items() if rotates]
    out += [base.but("fused", change=fused)] if split else []
    out += [base.but("qkv-biases", change=biased)] if split and "blk.0.attn_q.bias" not in tensors else []
    out += [base.but("per-layer", keys={k: [keys[k]] * keys["block_count"] for k in PER_LAYER if k in keys})]
    out += [base.but("window-ignored", keys={"attention.sliding_window": 8})] if _windowless(arch) else []
    defaults = _defaults(base)
    out += [base.but("defaults", keys=defaults)] if defaults else []
    out += [base.but("wide-heads", case=base.case.set("wide-heads", head_dim=32))] if arch in WIDE else []
    if arch in ("llama", "granite"):
        out += [base.but("divisors", change=divided), base.but("divisors-and-base", change=divided, keys={"rope.freq_base": 5e5},
                         case=base.case.set("divided", rope_theta=5e5))]
    return out


CONTAINERS = {"version-2": {"finish": version_2}, "align-128": {"alignment": 128}, "reversed": {"change": reverse},
              "trailing": {"finish": trailed}, "three-parts": {"parts": 3}}


@cache
def files() -> Mapping[str, tuple[File, ...]]:
    """The files of each module of cases that has a GGUF twin, and its GGUF_VARIANTS; llama shows what all share."""
    twins = {name: (module.GGUF, module.GGUF_CASES) for name, module in all_cases.families().items()
             if isinstance(getattr(module, "GGUF", None), Twin)}
    out = {}
    for name, (twin, cases) in ({"llama": (LLAMA_TWIN, LLAMA_CASES)} | twins).items():
        plain = [File(twin, case, case.name) for case in cases]
        out[name] = tuple(file.but(file.name, change=quiet) if (name, file.name) in NOISY else file
                          for file in (*plain, *_variants(plain[0])))
        own = getattr(all_cases.families()[name], "GGUF_VARIANTS", {})
        out[name] += tuple(plain[0].but(n, **changes) for n, changes in own.items())
    base = out["llama"][0]
    out["llama"] += (*(base.but(n, keys=record) for n, record in ROPE.items()),
                     *(base.but(n, **how) for n, how in CONTAINERS.items()))
    out["qwen2"] += tuple(out["qwen2"][i].but(f"head-bias-{name}", change=head_biased) for i, name in enumerate(("own", "tied")))
    return out
