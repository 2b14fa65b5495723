"""No header, however damaged, gets more out of compile or inspect than a diagnostic, and both give the same one."""
from __future__ import annotations

import os
import random
from pathlib import Path

from family_cases import llama
from llamacpp_files import LLAMA_TWIN
from tiny_models import write_gguf
from tiny_tokenizers import T0_TOKENS, t0_gguf

from uaii.compiler import through_passes
from uaii.frontend.tokenizer.source import tokenizer_of
from uaii.inspection import inspect
from uaii.ir.diag import Diagnostic, Malformed, Unsupported

CASE = llama.PLAIN.set("one-layer", num_hidden_layers=1, vocab_size=len(T0_TOKENS))
ROUNDS = int(os.environ.get("UAII_FUZZ_ROUNDS", 300))
FAVOURITES = (0, 1, 2, 0x7F, 0x80, 0xFF)


def base(tmp_path: Path) -> bytes:
    """A whole model of one layer with a vocabulary, a scaled rotation and every usual key."""
    keys = LLAMA_TWIN.keys(CASE, {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "general.file_type": 0,
                                  "tokenizer.ggml.model": None, "vocab_size": None})
    return write_gguf(tmp_path / "base.gguf", "llama", keys | t0_gguf(), LLAMA_TWIN.tensors(CASE)).read_bytes()


def mutated(data: bytes, header: int, rng: random.Random) -> bytes:
    """One to four bytes of the header changed, or a stretch of it removed, doubled or cut off."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        out[rng.randrange(header)] = rng.choice((*FAVOURITES, rng.randrange(256)))
    if rng.random() < 0.15:
        a, b = sorted((rng.randrange(header), rng.randrange(header)))
        out[a:min(b, a + 64)] = rng.choice((b"", bytes(out[a:b]) * 2, bytes(8)))
    return bytes(out[:rng.randrange(len(out))] if rng.random() < 0.1 else out)


def outcome(path: Path) -> str:
    """The code that compile stops with before it reads weights, or "ok"; inspect must agree."""
    report = inspect(path)
    try:
        tokenizer_of(through_passes(path).checkpoint)
    except Diagnostic as error:
        assert isinstance(error, Malformed | Unsupported) and error.says, repr(error)
        str(error).encode()
        assert report.blockers and error.code == report.blockers[0].code, (error.code, [b.code for b in report.blockers])
        return error.code
    assert report.ok, report.blockers
    return "ok"


def fuzz(tmp_path: Path, rounds: int, seed: int) -> dict[str, int]:
    """How often each outcome came."""
    data, rng, codes = base(tmp_path), random.Random(seed), dict[str, int]()
    header = data.index(b"output.weight") + 64
    path = tmp_path / "m.gguf"
    for _ in range(rounds):
        path.write_bytes(mutated(data, header, rng))
        code = outcome(path)
        codes[code] = codes.get(code, 0) + 1
    return codes


def test_only_diagnostics_come_out_of_damaged_headers(tmp_path: Path) -> None:
    codes = fuzz(tmp_path, ROUNDS, 5)
    assert len(codes) >= 10 and codes.keys() & {"ok", "F101", "T201"} and sum(codes.values()) == ROUNDS, codes
