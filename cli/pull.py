"""`uaii pull REPO`: a model of the Hugging Face Hub as a folder that is complete, or an error that says what is missing."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from uaii.cli.compile import progress
from uaii.cli.shell import FORMAT, data, guarded, stop_on_sigterm, talk
from uaii.ir.memory import size

if TYPE_CHECKING:
    from uaii.frontend.hub.pull import Pulled

VIA = ("auto", "https", "huggingface_hub", "hf", "plain")
REVISION = click.option("--revision", help="Branch, tag or commit. Default: main.")
QUANT = click.option("--quant", metavar="NAME", help="Which GGUF of the repository, by its quantisation: Q4_K_M.")
OFFLINE = click.option("--offline", is_flag=True, help="Use what is here and no network (also with HF_HUB_OFFLINE=1).")
SOURCE = click.option("--via", type=click.Choice(VIA), default="auto", show_default=True,
                      help="Who moves the bytes: uaii itself (https, plain), the package huggingface_hub and then uaii where it "
                           "fails, or the program hf on PATH. auto: the package where it is installed, else https.")


@click.command()
@click.argument("repo")
@REVISION
@click.option("--include", multiple=True, metavar="PATTERN", help="Only files whose names match; may be given several times.")
@QUANT
@click.option("--outdir", type=click.Path(path_type=Path), help="Folder to write. Default: the repository's name, here.")
@OFFLINE
@SOURCE
@FORMAT
@click.option("--quiet", is_flag=True, help="No progress and no notes.")
@guarded
def main(repo: str, revision: str | None, include: tuple[str, ...], quant: str | None, outdir: Path | None, offline: bool,
         via: str, fmt: str, quiet: bool) -> None:
    """Fetch REPO (owner/name) from the hub at HF_ENDPOINT: config, tokenizer and safetensors, or one GGUF.

    The folder appears when every file is there with its right size and sha256. What has arrived when a pull is
    interrupted is kept in a hidden folder beside it: the same command goes on from there. Pickles are never fetched.
    """
    stop_on_sigterm()
    notes: list[str] = []

    def note(text: str) -> None:
        notes.append(text)
        if fmt == "text" and not quiet:
            talk.print(f"note: {text}", markup=False)

    got = pull_into(repo, lambda name: outdir or Path(name), revision=revision, include=include, quant=quant, offline=offline,
                    via=via, note=note, silent=quiet or fmt == "json")
    if fmt == "json":
        data(record(got, notes))
        return
    click.echo(f"pulled {got.repo} -> {shortest(got.model)}")
    if not quiet:
        fetched = sum(got.files[n].size for n in got.fetched)
        talk.print(f"{len(got.files)} files, {size(got.bytes)}; " + (f"{size(fetched)} fetched" if got.fetched else
                   "nothing to fetch: all of it was there"), markup=False)


def pull_into(repo: str, place: Callable[[str], Path], *, revision: str | None = None, include: tuple[str, ...] = (),
              quant: str | None = None, offline: bool = False, via: str = "auto",
              note: Callable[[str], None] = lambda text: None, silent: bool = True) -> Pulled:
    """Pulls into the folder that `place` makes of the repository's last name. Raises what frontend.hub.pull raises."""
    from uaii.frontend.hub import endpoint as hub
    from uaii.frontend.hub.choose import Wish
    from uaii.frontend.hub.http import Client
    from uaii.frontend.hub.listing import repository
    from uaii.frontend.hub.pull import offline as kept
    from uaii.frontend.hub.pull import pull
    from uaii.frontend.hub.sources import Meter, source

    endpoint = hub.from_environment()
    name = repository(repo, endpoint.url)
    wish, out = Wish(include, quant), place(name.split("/")[-1])
    if offline or hub.offline():
        return kept(name, out, revision=revision, wish=wish)
    client = Client(endpoint)
    with progress(silent) as step:
        return pull(client, source(via, client), name, out, revision=revision or "main", wish=wish, meter=Meter(step), note=note)


def record(got: Pulled, notes: list[str]) -> dict[str, Any]:
    """The JSON form of a pull."""
    return {"repo": got.repo, "commit": got.commit, "folder": str(got.folder), "model": str(got.model), "bytes": got.bytes,
            "files": [{"name": n, "bytes": d.size, "sha256": d.sha256} for n, d in got.files.items()], "fetched": got.fetched,
            "via": got.via, "notes": notes}


def shortest(path: Path) -> Path:
    """A path as it can be typed from here."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
