"""GGUF vocabularies with scores (`llama`): SentencePiece BPE as llama.cpp runs it, with byte fallback."""
from __future__ import annotations

from uaii.frontend.tokenizer import parts
from uaii.frontend.tokenizer.gguf_bpe import added_tokens
from uaii.frontend.tokenizer.gguf_special import Specials
from uaii.frontend.tokenizer.gguf_vocab import Vocab
from uaii.frontend.tokenizer.parts import Json
from uaii.frontend.tokenizer.scores import merges_by_score, tied
from uaii.ir.diag import Unsupported

MISTRAL = ("[INST]", "[/INST]")


def build(vocab: Vocab, specials: Specials, post: Json | None, rstrip: set[int], notes: list[str]) -> str:
    """The tokenizer.json of a vocabulary with scores.

    A space goes in front of every fragment between special tokens when add_space_prefix is on, as in llama.cpp; where
    [INST] is a control token only the first fragment gets one, as the models' own tokenizers do. Raises Unsupported K504
    without scores.
    """
    if vocab.scores is None:
        raise Unsupported("K504", "a SentencePiece vocabulary without scores", vocab.key("scores"),
                          why="the scores rank the merges; without them llama.cpp merges by place alone",
                          hint="convert the model again with a current converter")
    special = specials.control | specials.by_text
    scores = dict(zip(vocab.tokens, vocab.scores, strict=True))
    merges = merges_by_score(vocab.ids, scores)
    if same := tied(scores, merges):
        notes.append(f"{len(same)} tokens share a score with another, e.g. {ascii(same[0])}: between those the lower id is "
                     "merged first, where llama.cpp takes the leftmost")
    lacking = [b for b in range(256) if f"<0x{b:02X}>" not in vocab.ids]
    unk = vocab.tokens[specials.ids["unk"]] if "unk" in specials.ids else None
    if lacking:
        notes.append(f"{len(lacking)} of the 256 byte tokens are missing: characters outside the vocabulary "
                     + ("become the unknown token" if unk else "are dropped"))
    prefix = vocab.flag("add_space_prefix", True)
    first_only = prefix and all(vocab.ids.get(text) in specials.control for text in MISTRAL)
    if first_only:
        notes.append("[INST] is a control token: no space is put after control tokens, as in the model's own tokenizer "
                     "(llama.cpp puts one)")
    normalizer = None if first_only else parts.sequence(
        "normalizers", [*([{"type": "Prepend", "prepend": "▁"}] if prefix else []), parts.replace(" ", "▁")])
    return parts.document(
        parts.bpe(vocab.ids, merges, unk=unk, byte_fallback=True), normalizer=normalizer,
        pre_tokenizer=parts.metaspace("first") if first_only else None, post_processor=post,
        decoder=parts.spaced_decoder(strip=prefix), added=added_tokens(vocab, special, specials.user, rstrip))
