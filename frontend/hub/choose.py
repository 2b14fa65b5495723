"""Which files of a repository make up the model that was asked for: the least that compiles, and never a pickle."""
from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from uaii.frontend.gguf_split import NAME
from uaii.frontend.hf_weights import PICKLES, SHARD
from uaii.frontend.hub.listing import Listing, inside
from uaii.ir.diag import Diagnostic, Malformed, Unsupported, Usage

TEXTS = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
         "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja",
         "chat_template.json", "tekken.json", "tiktoken.model", "qwen.tiktoken", "spiece.model", "sentencepiece.bpe.model")
TEMPLATES = "additional_chat_templates/*.jinja"
INDEX = ".safetensors.index.json"
BESIDE = re.compile(r"(^|/)(mmproj|imatrix)|imatrix\.gguf$", re.I)  # an image encoder or statistics, not the model
QUANT = re.compile(r"(?:UD-|i1-)?(?:I?Q\d\w*|TQ\d_\d|MXFP4\w*|BF16|F16|F32|FP16|FP32)(?=[-.]|$)", re.I)


@dataclass(frozen=True)
class Wish:
    """What the user asked for: patterns of names instead of the usual choice, or the name of a GGUF quantisation."""

    include: tuple[str, ...] = ()
    quant: str | None = None


@dataclass
class Choice:
    """Names to fetch. `main` is the file to hand to a compile, None for the folder itself; `index` names the shards."""

    names: list[str]
    main: str | None = None
    index: str | None = None
    notes: list[str] = field(default_factory=list)


def choose(listing: Listing, wish: Wish) -> Choice:
    """The files for a wish; the shards of an index come later, from the index itself.

    Raises Unsupported N707 (nothing that uaii reads), Usage N708 (several models, or none of that name), Malformed N706.
    """
    names = sorted({e.name for e in listing.files})
    if wish.include:
        chosen = _matching(listing.repo, names, wish)
    elif wish.quant or not any("/" not in n and n.endswith((".safetensors", INDEX)) for n in names):
        chosen = _gguf(listing, names, wish.quant)
    else:
        chosen = _folder(listing.repo, names)
    chosen.names = [inside(n, f"the listing of {listing.repo}") for n in chosen.names]
    return chosen


def _matching(repo: str, names: list[str], wish: Wish) -> Choice:
    if wish.quant:
        raise Usage("N708", "--include and --quant exclude each other", hint="--quant is enough for a GGUF model")
    found = [n for n in names if any(fnmatchcase(n, p) for p in wish.include)]
    pickles = [n for n in found if n.endswith(PICKLES)]
    chosen = [n for n in found if n not in pickles]
    if not chosen:
        raise Usage("N708", f"no file of {repo} matches {' or '.join(wish.include)}",
                    why="pickles are never fetched" if pickles else "", notes=names[:40], hint="patterns read like *.json")
    ggufs = [n for n in chosen if n.lower().endswith(".gguf")]
    notes = [f"{n} left out: a pickle, never fetched" for n in pickles]
    if any(n.endswith(INDEX) for n in chosen):
        notes.append("--include decides alone: the shards of the index are fetched only when they match too")
    return Choice(chosen, ggufs[0] if len(_sets(ggufs)) == 1 else None, None, notes)


def _folder(repo: str, names: list[str]) -> Choice:
    if "config.json" not in names:
        raise _no_config(repo, names)
    texts = [n for n in names if n in TEXTS or fnmatchcase(n, TEMPLATES)]
    texts.sort(key=lambda n: n != "config.json")
    here = [n for n in names if "/" not in n and not n.startswith("consolidated")]
    indexes = [n for n in here if n.endswith(INDEX)]
    index = "model" + INDEX if "model" + INDEX in indexes else next(iter(indexes), None)
    notes = [f"{n} left out: the repository has safetensors" for n in names if n.lower().endswith(".gguf")][:3]
    if index is not None:
        return Choice([*texts, index], None, index, notes)
    weights = [n for n in here if n.endswith(".safetensors")]
    weights = ["model.safetensors"] if "model.safetensors" in weights else weights
    shards = [n for n in weights if (part := SHARD.fullmatch(n)) and int(part[2]) > 1]
    if shards:
        raise Malformed("N709", f"pull incomplete: {repo} has the shard {shards[0]} and no model{INDEX}",
                        why="only the index says which shards a model has", hint="tell the publisher, or take another repository")
    if len(weights) != 1:
        what = "only the publisher's own copy of the weights" if not weights else f"{len(weights)} files of weights"
        raise Usage("N708", f"{repo} has {what}", notes=weights or [n for n in names if n.endswith(".safetensors")],
                    hint="choose with --include, once for the weights and once for '*.json'")
    return Choice([*texts, *weights], None, None, notes)


def _no_config(repo: str, names: list[str]) -> Diagnostic:
    if "adapter_config.json" in names:
        return Unsupported("N707", f"{repo} is a LoRA adapter: pull the merged model", hint="its page names the base model",
                           why="an adapter only changes a base model, which uaii does not merge")
    return Unsupported("N707", f"{repo} has no config.json", why="safetensors alone do not say what the model is",
                       notes=names[:40], hint="take the repository of the transformers version, or a GGUF of the model")


def _gguf(listing: Listing, names: list[str], quant: str | None) -> Choice:
    models = [n for n in names if n.lower().endswith(".gguf") and not BESIDE.search(n)]
    if not models:
        raise _nothing(listing.repo, names, quant)
    sets = _sets(models)
    wanted = {k: v for k, v in sets.items() if quant is None or named(v[0], quant)}
    if len(wanted) != 1:
        offered = sorted({m[0] for files in sets.values() if (m := _last(files[0]))})
        says = f"{listing.repo} holds {len(wanted)} GGUF models" + (f" that --quant {quant} fits" if quant else "")
        hint = f"choose with --quant: {', '.join(offered)}" if offered else "choose with --include PATTERN"
        raise Usage("N708", says, notes=[_describe(listing, v) for v in (wanted or sets).values()][:40], hint=hint)
    files = next(iter(wanted.values()))
    _whole(listing.repo, files)
    return Choice(files, files[0])


def _nothing(repo: str, names: list[str], quant: str | None) -> Diagnostic:
    if quant:
        return Usage("N708", f"{repo} holds no GGUF file, so no --quant {quant}", hint="look for a GGUF repository of the model")
    pickles = [n for n in names if n.endswith(PICKLES)]
    if pickles:
        return Unsupported("N707", f"{repo} has no safetensors and no GGUF, only pickles", notes=pickles[:8],
                           why="opening a pickle can run any code; uaii never fetches one",
                           hint="take another repository of the model, or convert it with transformers and save_pretrained")
    return Unsupported("N707", f"{repo} has no weights that uaii reads", notes=names[:40], why="it reads safetensors and GGUF",
                       hint="check that it is a model, not a data set or a space")


def _sets(files: Sequence[str]) -> dict[str, list[str]]:
    """Files by model: the parts of a split set together, in order."""
    out: dict[str, list[str]] = {}
    for name in sorted(files):
        part = NAME.fullmatch(name)
        out.setdefault(f"{part['prefix']}-of-{part['count']}" if part else name, []).append(name)
    return out


def _whole(repo: str, files: list[str]) -> None:
    part = NAME.fullmatch(files[0])
    if part is None:
        return
    wanted = [f"{part['prefix']}-{i + 1:05d}-of-{part['count']}.gguf" for i in range(min(int(part["count"]), 1000))]
    missing = [n for n in wanted if n not in files]
    if missing:
        raise Malformed("N709", f"pull incomplete: missing shard {missing[0]}", notes=missing[1:9],
                        why=f"{repo} lists {len(files)} of {part['count']} parts", hint="tell the publisher, or take another one")


def named(file: str, quant: str) -> bool:
    """Whether a file name says this quantisation, as a word of its own: Q4_K is not Q4_K_M."""
    return re.search(rf"(?:^|[-._/]){re.escape(quant)}(?=[-./]|$)", file, re.I) is not None


def _last(file: str) -> re.Match[str] | None:
    found = None
    for found in QUANT.finditer(file.rsplit("/", 1)[-1].removesuffix(".gguf")):  # noqa: B007
        pass
    return found


def _describe(listing: Listing, files: list[str]) -> str:
    sizes = [listing.entry(n).size for n in files]
    known = sum(s for s in sizes if s is not None)
    parts = f", {len(files)} parts" if files[1:] else ""
    return f"{files[0]}{parts}" + (f" ({known / 1e9:.1f} GB)" if known and None not in sizes else "")
