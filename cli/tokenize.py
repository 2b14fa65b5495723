"""`uaii tokenize MODEL [TEXT]`: text to ids and pieces, or back."""
from __future__ import annotations

import json
from pathlib import Path

import click

from uaii.cli.run import objects, read
from uaii.cli.shell import FORMAT, data, guarded, talk
from uaii.ir.diag import Usage


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("text", required=False)
@click.option("--file", "file", type=click.Path(path_type=Path), help="File whose bytes are the text (- is stdin).")
@click.option("--no-special", is_flag=True, help="Add no BOS or EOS.")
@click.option("--no-parse-special", is_flag=True, help="Control tokens in the text are plain text (default: parsed).")
@click.option("--decode", is_flag=True, help="TEXT is ids (1,2,3): print what they say.")
@click.option("--chat", "chat_file", type=click.Path(path_type=Path), help="JSON list of messages for the chat template.")
@FORMAT
@guarded
def main(model: Path, text: str | None, file: Path | None, no_special: bool, no_parse_special: bool, decode: bool,
         chat_file: Path | None, fmt: str) -> None:
    """Show how MODEL (a folder, a .gguf file or an artifact) reads TEXT."""
    from uaii.frontend.chat_ids import Conversations
    from uaii.frontend.tokenizer.source import open_tokenizer

    tok = open_tokenizer(model)
    if sum(x is not None for x in (text, file, chat_file)) > 1:
        raise Usage("U030", "TEXT, --file and --chat exclude each other")
    if decode:
        said = tok.decode(_ids(text if text is not None else read(file)), skip_special=False)
        if fmt == "json":
            data({"text": said})
        else:
            click.echo(said)
        return
    if chat_file is not None:
        messages = objects(chat_file, "messages", '[{"role": "user", "content": "Hello"}]')
        ids = Conversations(tok).encode(messages, parse_special=not no_parse_special).ids
    else:
        ids = tok.encode(text if text is not None else read(file), add_special=not no_special,
                         parse_special=not no_parse_special)
    pieces = tok.pieces(ids)
    if fmt == "json":
        data({"ids": ids, "pieces": pieces})
        return
    for note in tok.files.notes:
        talk.print(f"note: {note}", markup=False)
    click.echo(",".join(map(str, ids)))
    click.echo(" ".join(json.dumps(p, ensure_ascii=False) for p in pieces))


def _ids(text: str) -> list[int]:
    try:
        return [int(x) for x in text.replace(",", " ").split()]
    except ValueError:
        raise Usage("U033", f"--decode takes ids with commas between, not {text[:60]!r}") from None
