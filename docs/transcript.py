"""Makes docs/transcript.md: what a new user types, from a hub to an explained artifact, and what comes back.

Run from the repository root: python docs/transcript.py. The hub is a server on this machine that serves SmolLM2-135M-Instruct.
"""
from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = Path(__file__).with_suffix(".md")
PROGRAMS = {"uaii": "main", "uaii-compile": "compile", "uaii-run": "run", "uaii-explain": "explain"}
REPO = "HuggingFaceTB/SmolLM2-135M-Instruct-GGUF"
SYSTEM = "You are a helpful AI assistant."
SESSION = [
    ("A repository comes into a folder. The second time there is nothing to fetch.",
     [f"uaii pull {REPO} --outdir smollm2"] * 2),
    ("What is in it, and whether it compiles; only headers are read.", ["uaii inspect smollm2"]),
    ("The artifact, and a text to continue.",
     ["uaii-compile smollm2 -o artifact", "uaii-run artifact --prompt 'The capital of France is' --max-new-tokens 2"]),
    ("A conversation, here through a pipe. Each turn goes on from the cache of the one before.",
     ["printf '%s\\n' 'What is the capital of France?' 'And of Italy?' 'And of Japan?' /stats |\n"
      f"    uaii-run artifact --chat --system '{SYSTEM}'"]),
    ("What the passes did that found something to do, and where a weight and a stored tensor went.",
     ["uaii-explain artifact | awk '$3 != 0'", "uaii-explain artifact @0.attn_norm",
      "uaii-explain artifact blk.0.attn_q.weight"]),
    ("A refusal: nothing is guessed, nothing is written.", ["uaii pull gpt-4", "uaii-compile no-such-folder -o artifact2"])]
# What is another number on another machine or day.
VARIES = [(r"\d+(\.\d+)? tokens/s", "N tokens/s"), (r"(took +|load )\d+\.\d+ s", r"\1N s"),
          (r"peak memory \d+(\.\d+)? [MG]B", "peak memory N MB"), (r"\.py:\d+", ".py:N")]
HEAD = """# A first session

Made by [transcript.py](transcript.py), which a test runs again. The hub is a local server with the one file of a real model,
SmolLM2-135M-Instruct in Q4_1 (98 MB); `N` stands for times, memory and line numbers.
"""


def transcript(model: Path) -> str:
    """The page's text, from a session in an empty folder with this GGUF on the hub."""
    from hub_server import Hub, serving

    with tempfile.TemporaryDirectory() as temp, serving(Hub({model.name: model.read_bytes()}, repo=REPO)) as hub:
        here = Path(temp).resolve()
        parts = [HEAD]
        for says, commands in SESSION:
            parts.append(f"{says}\n\n```console")
            for command in commands:
                parts.append(f"$ {command}\n{said(command, here, hub.url)}")
            parts[-1] += "\n```\n"
    return "\n".join(parts)


def said(command: str, here: Path, url: str) -> str:
    """What a command prints, and its exit code unless that is 0."""
    (here / "bin").mkdir(exist_ok=True)
    for name, module in PROGRAMS.items():
        program = here / "bin" / name
        program.write_text(f"#!{sys.executable}\nfrom uaii.cli.{module} import main\nmain(prog_name={name!r})\n")
        program.chmod(0o755)
    kept = {k: v for k, v in os.environ.items() if not k.upper().startswith(("HF_", "HUGGING", "UAII_"))
            and not k.lower().endswith("_proxy")}
    env = kept | {"PATH": f"{here / 'bin'}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "HF_ENDPOINT": url,
                  "HF_HOME": str(here / "home"), "UAII_CACHE": str(here / "cache"), "COLUMNS": "100", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(["bash", "-c", command], cwd=here, env=env, text=True, encoding="utf-8", stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    text = done.stdout.replace(f"{here}/", "").replace(url, "http://localhost")
    for varies, stands in VARIES:
        text = re.sub(varies, stands, text)
    lines = [line.rstrip() for line in text.rstrip().splitlines()]
    return "\n".join([*lines, f"(exit code {done.returncode})"] if done.returncode else lines)


if __name__ == "__main__":
    from uaii.cli.demo import model_file

    sys.path.insert(0, str(ROOT / "tests" / "support"))
    PAGE.write_text(transcript(model_file()), "utf-8")
