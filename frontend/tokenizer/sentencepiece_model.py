"""tokenizer.model (SentencePiece) as a tokenizer.json, checked against SentencePiece itself before it is used."""
from __future__ import annotations

import base64
import re
from importlib import import_module
from typing import Any

from uaii.frontend.tokenizer import parts
from uaii.frontend.tokenizer.parts import Json
from uaii.frontend.tokenizer.scores import merges_by_score
from uaii.frontend.tokenizer.settings import Settings, read_bytes
from uaii.frontend.tokenizer.text import library_tokenizer
from uaii.frontend.tokenizer.vocab_merges import added_from
from uaii.ir.diag import Unsupported
from uaii.ir.loc import File

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
UNIGRAM, BPE = 1, 2
PREFIXED = {"always": "every fragment between special tokens", "first": "the first fragment", "never": "nothing"}
PROBES = ("Hello world", "The quick brown fox, 1234567890!", "def f(x):\n\treturn  x + 1\n\n", "a  b   c    d", " x", "x ",
          "Ünïcödé naïve café", "こんにちは世界", "안녕하세요", "Привет, мир", "مرحبا", "😀 👩‍👩‍👧", "ﬁ Ⅷ ½ ％ＡＢ",
          "e\u0301 A\u030a", "\u00a0\u3000\u200b", "▁", "a▁b▁", "\x00\x01", "----====####", "''\"\"``", "x" * 40, "\n\n\n")


def from_sentencepiece(said: Settings) -> str:
    """The tokenizer.json of a SentencePiece BPE or Unigram model, encoding as SentencePiece does.

    ▁ goes in front of every fragment between special tokens (`legacy`), of the first (`legacy: false`, and LlamaTokenizer
    without the flag), or of none, as in transformers 5. Raises Unsupported K509 (`tokenizer.model found but ...`).
    """
    path = said.folder / "tokenizer.model"
    raw = read_bytes(path)
    proto = _parse(said, raw)
    dummy = bool(proto.normalizer_spec.add_dummy_prefix) and said.config.get("add_prefix_space") is not False
    legacy = said.config.get("legacy", said.kind != "LlamaTokenizer") is not False
    scheme = ("always" if legacy else "first") if dummy else "never"
    own = "always" if proto.normalizer_spec.add_dummy_prefix else "never"
    model = _model(proto)
    _check(said, raw, _document(model, proto, own, [], None))
    vocab = {piece.piece: i for i, piece in enumerate(proto.pieces)}
    for role, i in (("bos_token", proto.trainer_spec.bos_id), ("eos_token", proto.trainer_spec.eos_id),
                    ("unk_token", proto.trainer_spec.unk_id)):
        if role not in said.special and 0 <= i < len(proto.pieces):
            said.special[role] = proto.pieces[i].piece
    added = {token["id"]: token for token in added_from(said, vocab)}
    for i, piece in enumerate(proto.pieces):
        if piece.type in (CONTROL, UNKNOWN):
            added.setdefault(i, parts.added_token(i, piece.piece, special=True))
    said.notes.append(f"tokenizer.model: ▁ goes in front of {PREFIXED[scheme]}")
    ends = [(text, vocab[text]) if said.config.get(flag) is True and text in vocab else None
            for flag, text in (("add_bos_token", said.special.get("bos_token", "")),
                               ("add_eos_token", said.special.get("eos_token", "")))]
    if len(vocab) > len(proto.pieces):
        if model["type"] == "Unigram":
            raise refused(said, "a Unigram model with tokens added beyond its vocabulary is not converted")
        model["vocab"] = vocab
    return _document(model, proto, scheme, list(added.values()), parts.around(ends[0], ends[1]))


def refused(said: Settings, what: str) -> Unsupported:
    """The refusal of a tokenizer.model, under the prefix that support looks for."""
    return Unsupported("K509", f"tokenizer.model found but {what}", File(str(said.folder / "tokenizer.model")),
                       hint="add a tokenizer.json to the folder (transformers saves one)")


def _parse(said: Settings, raw: bytes) -> Any:
    try:
        decode_error = import_module("google.protobuf.message").DecodeError
        proto = import_module("sentencepiece.sentencepiece_model_pb2").ModelProto()
    except ImportError as err:
        raise refused(said, f"it cannot be read without the packages sentencepiece and protobuf ({err.name})") from None
    try:
        proto.ParseFromString(raw)
    except decode_error:
        raise refused(said, "it is not a SentencePiece model") from None
    if not proto.pieces or proto.trainer_spec.model_type not in (UNIGRAM, BPE):
        raise refused(said, "it is neither a BPE nor a Unigram model")
    if proto.trainer_spec.treat_whitespace_as_suffix or not proto.normalizer_spec.escape_whitespaces:
        raise refused(said, "it marks white space in a way that tokenizer.json cannot")
    return proto


def _model(proto: Any) -> Json:
    byte_fallback = bool(proto.trainer_spec.byte_fallback)
    if proto.trainer_spec.model_type == UNIGRAM:
        return {"type": "Unigram", "unk_id": proto.trainer_spec.unk_id, "byte_fallback": byte_fallback,
                "vocab": [[piece.piece, piece.score] for piece in proto.pieces]}
    vocab = {piece.piece: i for i, piece in enumerate(proto.pieces)}
    merges = merges_by_score(vocab, {piece.piece: piece.score for piece in proto.pieces},
                             skip={piece.piece for piece in proto.pieces if piece.type != NORMAL})
    return parts.bpe(vocab, merges, unk=proto.trainer_spec.unk_piece, byte_fallback=byte_fallback,
                     ignore_merges=any(piece.type == USER_DEFINED for piece in proto.pieces))


def _document(model: Json, proto: Any, scheme: str, added: list[Json], post: Json | None) -> str:
    norm = proto.normalizer_spec
    user = [piece.piece for piece in proto.pieces if piece.type == USER_DEFINED]
    steps: list[Json] = []
    if norm.precompiled_charsmap:
        charsmap = base64.b64encode(norm.precompiled_charsmap).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    if norm.remove_extra_whitespaces:
        steps += [parts.replace_regex(r"\A +|[ ▁]+\z", ""), parts.replace_regex(" {2,}", " ")]
    steps += [{"type": "Prepend", "prepend": "▁"}] if scheme == "always" else []
    steps.append(parts.replace(" ", "▁"))
    cuts = [parts.metaspace("first")] if scheme == "first" else []
    if user:
        cuts.append(parts.split("|".join(re.escape(p) for p in sorted(user, key=len, reverse=True))))
    return parts.document(model, added=added, normalizer=parts.sequence("normalizers", steps), post_processor=post,
                          pre_tokenizer=parts.sequence("pretokenizers", cuts),
                          decoder=parts.spaced_decoder(strip=scheme != "never", byte_fallback=model["byte_fallback"]))


def _check(said: Settings, raw: bytes, text: str) -> None:
    import sentencepiece
    processor = sentencepiece.SentencePieceProcessor(model_proto=raw)
    made = library_tokenizer(text, "tokenizer.model")
    for probe in PROBES:
        if made.encode(probe, add_special_tokens=False).ids != processor.encode(probe):
            raise refused(said, f"its conversion gives other ids than SentencePiece, for example for {ascii(probe)}")
