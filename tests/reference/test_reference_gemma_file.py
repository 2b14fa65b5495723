"""A real Q4_K_M file, Gemma 3 270M: its packed size, and --weights f32 against transformers on the values of its blocks."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gemma_file import model_file
from parity import GREEDY

from uaii.backends.ort.generate import generate
from uaii.backends.ort.session import Session
from uaii.compiler import compile_model
from uaii.frontend.tokenizer.source import Tokenizer, open_tokenizer

pytestmark = pytest.mark.reference

THREADS = 2
TOLERANCE = 1e-3  # of the range
TEXTS = {
    "english": "The capital of Portugal is", "code": 'def fibonacci(n):\n    """Return the n-th Fibonacci number."""\n',
    "french": "Les trois mousquetaires est un roman d'Alexandre Dumas qui raconte", "chinese": "中国的首都是北京，它是一座",
    "spanish": "El océano Pacífico es el más", "numbers": "1, 1, 2, 3, 5, 8, 13,",
    "past the window": "Once upon a time there was a small village by the sea. " * 46,
}
NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "post_ffw_norm": "post_feedforward_layernorm",
}
OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


@pytest.fixture(scope="module")
def file() -> Path:
    return model_file()


def theirs_name(name: str) -> str:
    """transformers' name of a tensor; the layers' begin with blk.{i}."""
    part, word = name.rsplit(".", 1)
    _, i, inner = part.split(".", 2) if part.startswith("blk.") else ("", "", part)
    return f"model.layers.{i}.{NAMES[inner]}.{word}" if i else f"{OUTSIDE[inner]}.{word}"


@pytest.fixture(scope="module")
def exact(file: Path) -> Any:
    """transformers' Gemma 3 in f32, with the values that the gguf package reads from the blocks."""
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    reader = gguf.GGUFReader(file)
    said = {k.removeprefix("gemma3."): f.contents() for k, f in reader.fields.items() if k.startswith("gemma3.")}
    theta = {"sliding_attention": 1e4, "full_attention": said["rope.freq_base"]}
    config = Gemma3TextConfig(
        vocab_size=int(next(t for t in reader.tensors if t.name == "token_embd.weight").shape[1]),
        hidden_size=said["embedding_length"], intermediate_size=said["feed_forward_length"],
        num_hidden_layers=said["block_count"], num_attention_heads=said["attention.head_count"],
        num_key_value_heads=said["attention.head_count_kv"], head_dim=said["attention.key_length"],
        query_pre_attn_scalar=said["attention.key_length"], sliding_window=said["attention.sliding_window"],
        rms_norm_eps=said["attention.layer_norm_rms_epsilon"], max_position_embeddings=said["context_length"],
        rope_parameters={k: {"rope_type": "default", "rope_theta": t} for k, t in theta.items()}, tie_word_embeddings=True,
        attn_implementation="eager")
    with torch.device("meta"):
        made = Gemma3ForCausalLM(config)
    made = made.to_empty(device="cpu")
    with torch.device("cpu"):
        made.model.rotary_emb = type(made.model.rotary_emb)(config)
        made.model.embed_tokens.embed_scale = torch.tensor(config.hidden_size ** 0.5)
    values = {}
    for t in reader.tensors:
        x = gguf.dequantize(t.data, t.tensor_type).astype(np.float32)
        values[theirs_name(t.name)] = torch.from_numpy(x - 1 if t.name.endswith("norm.weight") else x)  # 1 + w is stored
    missing, strange = made.load_state_dict(values, strict=False, assign=True)
    made.tie_weights()
    assert (missing, strange) == (["lm_head.weight"], [])
    return made.eval()


def continued(model: Any, prompt: list[int]) -> tuple[np.ndarray, list[int]]:
    """Logits of the prompt's last position, and the greedy tokens after it."""
    import torch
    with torch.no_grad():
        last = model(torch.tensor([prompt]), logits_to_keep=1).logits[0, -1].numpy()
        out = model.generate(torch.tensor([prompt]), max_new_tokens=GREEDY, min_new_tokens=GREEDY, do_sample=False,
                             eos_token_id=None)
    return last, out[0, len(prompt):].tolist()


@pytest.fixture(scope="module")
def tokenizer(file: Path) -> Tokenizer:
    return open_tokenizer(file)


@pytest.fixture(scope="module")
def ours(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Session:
    made = compile_model(file, tmp_path_factory.mktemp("gemma") / "f32", weights="f32")
    return Session.open(made.folder, threads=THREADS)


def test_the_packed_artifact_is_little_larger_than_the_file(file: Path, tmp_path: Path) -> None:
    made = compile_model(file, tmp_path / "packed")
    size = sum(p.stat().st_size for p in made.folder.glob("model.onnx*"))
    assert made.summary["dequantised"] == 0
    assert size <= 1.3 * file.stat().st_size


@pytest.mark.parametrize("name", TEXTS)
def test_f32_weights_give_the_tokens_of_exact_math(name: str, tokenizer: Tokenizer, ours: Session, exact: Any) -> None:
    prompt = tokenizer.encode(TEXTS[name])
    last, tokens = continued(exact, prompt)
    mine = ours.logits(prompt)[-1]
    assert np.abs(mine - last).max() <= TOLERANCE * np.ptp(last)
    assert generate(ours, prompt, max_new_tokens=GREEDY, ignore_eos=True).run().tokens == tokens
