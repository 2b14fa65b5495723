"""Which tokens of a GGUF vocabulary are special: BOS, EOS, the end-of-generation set, and what is matched whole."""
from __future__ import annotations

from dataclasses import dataclass, field

from uaii.frontend.tokenizer.gguf_vocab import GGML, Kind, Vocab
from uaii.ir.diag import Malformed

# Texts that llama.cpp takes for a role when the key is absent (src/llama-vocab.cpp).
EOT = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>", "_<EOT>",
       "[EOT]", "<｜end▁of▁sentence｜>", "<end_of_utterance>")
BY_TEXT = {"eot": EOT, "eom": ("<|eom_id|>",),
           "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
           "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
           "fim_sep": ("<|file_sep|>",),
           "fim_pre": ("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>",
                       "<|code_prefix|>", "<|prefix|>"),
           "fim_suf": ("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>",
                       "<|code_suffix|>", "<|suffix|>"),
           "fim_mid": ("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>",
                       "<|code_middle|>", "<|middle|>")}
STOPPING = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
ENDS = (*EOT, "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "</s>", "<|eom_id|>", "[EOS]", "<eos>", "<turn|>",
        "<|tool_response>", "[e~[")
KEYS = {"bos": "bos_token_id", "eos": "eos_token_id", "unk": "unknown_token_id", "pad": "padding_token_id",
        "eot": "eot_token_id", "eom": "eom_token_id", "fim_pad": "fim_pad_token_id", "fim_rep": "fim_rep_token_id",
        "fim_sep": "fim_sep_token_id", "fim_pre": "fim_pre_token_id", "fim_suf": "fim_suf_token_id",
        "fim_mid": "fim_mid_token_id"}
DEFAULTS = {"llama": {"bos": 1, "eos": 2, "unk": 0}, "gpt2": {"bos": 11, "eos": 11}}


@dataclass
class Specials:
    """Ids by role; `stop` is the end-of-generation set.

    Matched whole: `control` and `user` (by type; control tokens are hidden in output), and `by_text`, ordinary by type but
    with a text that llama.cpp takes for a control token.
    """

    ids: dict[str, int]
    stop: tuple[int, ...]
    control: set[int]
    user: set[int]
    by_text: set[int]
    notes: list[str] = field(default_factory=list)


def find_specials(vocab: Vocab, model: str) -> Specials:
    """Roles by key, then by the defaults of the tokenizer kind, then by text, as llama.cpp finds them.

    Two differences, both noted: a default id that is an ordinary token is not used (gpt2 without keys means id 11, which is
    a comma in most vocabularies), and the channel marks of gpt-oss stay control tokens.
    """
    notes: list[str] = []
    ids = {role: i for role in KEYS if (i := _by_key(vocab, role, notes)) is not None}
    for role, i in DEFAULTS.get(model, {}).items():
        if role in ids or i >= len(vocab.tokens):
            continue
        if model == "gpt2" and vocab.types[i] == Kind.NORMAL and vocab.tokens[i] not in ENDS:
            notes.append(f"no {GGML}{KEYS[role]}: the default id {i} is the ordinary token {ascii(vocab.tokens[i])}, "
                         f"so there is no {role.upper()}")
        else:
            ids[role] = i
    found = {role: vocab.ids[text] for role, texts in BY_TEXT.items() if role not in ids
             for text in reversed(texts) if text in vocab.ids}
    roles = found | ids
    ends = {vocab.ids[text] for text in ENDS if text in vocab.ids}
    stop = ends | {roles[role] for role in STOPPING if role in roles}
    plain = _not_ends(vocab, stop, notes)
    control = {*vocab.texts(Kind.CONTROL), *vocab.texts(Kind.UNKNOWN)}
    user = set(vocab.texts(Kind.USER_DEFINED))
    return Specials(roles, tuple(sorted(stop - plain)), control, user,
                    {*found.values(), *ends} - control - user - plain, notes)


def _by_key(vocab: Vocab, role: str, notes: list[str]) -> int | None:
    name = KEYS[role]
    value = vocab.metadata.get(GGML + name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise Malformed("K503", f"{GGML}{name} must be an integer", vocab.key(name))
    if not 0 <= value < len(vocab.tokens):
        notes.append(f"{GGML}{name} = {value} is outside the vocabulary of {len(vocab.tokens)} tokens: dropped")
        return None
    return value


def _not_ends(vocab: Vocab, stop: set[int], notes: list[str]) -> set[int]:
    texts = {vocab.tokens[i]: i for i in stop}
    plain = set()
    harmony = {"<|return|>", "<|call|>", "<|end|>"} <= texts.keys()
    solar = {"<|flush|>", "<|end|>"} <= texts.keys() and bool({"<|call|>", "<|calls|>"} & texts.keys())
    if harmony or solar:
        plain.add(texts["<|end|>"])
        notes.append("<|end|> closes a message here, not the answer: it does not stop generation")
    if "</s>" in texts and {"<|tool_response>", "<|plamo:eos|>"} & texts.keys():
        plain.add(texts["</s>"])
    return plain
