"""Runs a saved folder in transformers: f32, eager attention, every tensor accounted for."""
from __future__ import annotations

import copy
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from parity import GREEDY, Run
from tiny_models import Case
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

torch.set_num_threads(1)  # tiny matrices: a second thread only waits, and on a busy machine ten times as long
logging.set_verbosity_error()
logging.disable_progress_bar()


# Model types that transformers does not know, and the one whose computation each shares.
SAME = {"kimi_k2": "deepseek_v3"}


def load(folder: Path, attention: str = "eager") -> Any:
    """The model of a folder; fails when a tensor of the file finds no place or a parameter no tensor.

    Layers after the last, which predict further tokens, have no place there.
    """
    stated = json.loads((folder / "config.json").read_text())
    kind = stated.pop("model_type")
    config = AutoConfig.for_model(SAME[kind], **stated) if kind in SAME else None
    model, info = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32, attn_implementation=attention,
                                                       output_loading_info=True)
    depth = model.config.num_hidden_layers
    further = [n for n in info["unexpected_keys"] if (found := re.match(r"model\.layers\.(\d+)\.", n)) and int(found[1]) >= depth]
    info["unexpected_keys"] = set(info["unexpected_keys"]) - set(further)
    left = {what: names for what, names in info.items() if names}
    assert not left, f"transformers does not load {folder}: {left}"
    model.generation_config.eos_token_id = None
    return model.eval()


def run(case: Case, folder: Path, prompts: Sequence[Sequence[int]] | None = None) -> list[Run]:
    """One Run per prompt, each on a fresh copy: some rope types keep state between calls."""
    model = load(folder)
    _round_constants(model, {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[case.dtype])
    return [_run(model, prompt, case.by_length) for prompt in (case.prompts() if prompts is None else prompts)]


def _round_constants(model: Any, stored: torch.dtype) -> None:
    """Gemma's embedding factor as transformers has it when it computes in the type of the folder's weights."""
    for module in model.modules():
        if hasattr(module, "embed_scale"):
            module.embed_scale = module.embed_scale.to(stored).to(torch.float32)


@torch.no_grad()
def _run(model: Any, prompt: Sequence[int], by_length: bool) -> Run:
    fresh = copy.deepcopy(model)
    out = fresh(torch.tensor([prompt]), use_cache=True)
    prefill, tokens, decode = out.logits[0].numpy(), [], []
    row = prefill[-1]
    for _ in range(GREEDY):
        tokens.append(int(row.argmax()))
        out = _forward(fresh, [*prompt, *tokens], out.past_key_values)
        row = out.logits[0, -1].numpy()
        decode.append(row)
    generated = copy.deepcopy(model).generate(torch.tensor([prompt]), max_new_tokens=GREEDY, do_sample=False)
    assert generated[0, len(prompt):].tolist() == tokens, "transformers' generate disagrees with its own forward"
    stepwise = _stepwise(copy.deepcopy(model), [*prompt, *tokens]) if by_length else np.concatenate([prefill, decode])
    return Run(tokens, prefill, np.array(decode), stepwise)


def _stepwise(model: Any, ids: Sequence[int]) -> np.ndarray:
    past, rows = None, []
    for count in range(1, len(ids) + 1):
        out = _forward(model, ids[:count], past)
        past = out.past_key_values
        rows.append(out.logits[0, -1].numpy())
    return np.array(rows)


def _forward(model: Any, ids: Sequence[int], past: Any) -> Any:
    """The last token after `past`; all of them where longrope's factors change and generate drops the cache."""
    rope = getattr(model.config, "rope_parameters", None) or {}
    again = rope.get("rope_type") == "longrope" and len(ids) == rope["original_max_position_embeddings"] + 1
    return model(torch.tensor([ids if again else ids[-1:]]), cache=None if again else past, use_cache=True)
