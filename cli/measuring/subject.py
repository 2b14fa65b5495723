"""What is measured: an artifact, the engines that can run the same model, and a plan that fits its context."""
from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

from uaii.backends.ort.manifest import GRAPH, NAME, Manifest, read_manifest
from uaii.cli.measuring.peers import PEERS
from uaii.cli.measuring.rounds import Contender, Failed, Plan, child
from uaii.cli.measuring.traffic import Traffic, stored, traffic
from uaii.cli.measuring.worker import WARM, Compile
from uaii.explanation import is_artifact
from uaii.ir.diag import Internal, Usage

READ = 512 << 20  # bytes that each thread reads to measure the bandwidth: far beyond any cache
QUICK_READ, READ_SECONDS = 64 << 20, 2.0
GENAI = "genai_config.json"


@dataclass(frozen=True)
class Subject:
    """An artifact. `compiled` says what its compile took if it was compiled now; `source` is where it came from, if known."""

    folder: Path
    manifest: Manifest
    traffic: Traffic
    source: Path | None
    accept: tuple[str, ...]
    compiled: dict[str, Any] | None

    @classmethod
    def of(cls, target: Path, options: dict[str, Any], quiet: bool) -> Subject:
        """The artifact at `target`, or that of the model there, compiled in a process of its own unless the cache has it.

        Raises what a compile raises, and Malformed S6xx for a broken artifact.
        """
        made = None
        if not is_artifact(target):
            try:
                reply = child(Compile(target, options, quiet), quiet=False)
            except Failed as err:
                raise Internal("U064", f"the compile could not be measured: {err}") from None
            target, made = Path(reply["artifact"]), reply["compile"]
        manifest = read_manifest(target)
        said = json.loads((target / NAME).read_text("utf-8"))
        path = said.get("sources", {}).get("path")
        graph, steps = traffic(target / GRAPH), said.get("pipeline")
        graph = replace(graph, weights=steps[-1]["read_per_token"]) if steps else graph  # it sees into every construct
        graph = replace(graph, cached=graph.cached[::2]) if manifest.kv_latent else graph  # key and value are the same rows
        return cls(target, manifest, graph, Path(path) if path else None,
                   tuple(said.get("options", {}).get("accept", ())), made)

    def record(self) -> dict[str, Any]:
        """What the report says of it."""
        m = self.manifest
        return {"name": self.source.name if self.source else self.folder.name, "family": m.family, "layers": m.layers,
                "context_length": m.context_length, "vocab_size": m.vocab_size, "nodes": self.traffic.nodes,
                "stored_bytes": sum(n for name, n in m.files.items() if name.startswith(GRAPH)),
                "read_per_token": self.traffic.weights, "cache_bytes_per_token": round(self.traffic.cache(1))}

    def contenders(self, only: tuple[str, ...], given: Mapping[str, Path | None]) -> tuple[list[Contender],
                                                                                        list[dict[str, str]]]:
        """uaii, then the engines that can be measured here; and the others, each with its reason and what would help.

        `given` are the paths of --gguf, --genai and --beside. Raises Usage U060 for an unknown name, a path where nothing
        is, and an artifact of another vocabulary; U065 when an engine was asked for by name and cannot be had.
        """
        others = [n for n in PEERS if n != "uaii"]
        for name in set(only) - {*others, "none"}:
            raise Usage("U060", f"--peer {name}: there is no such engine", hint=f"one of {', '.join(others)}, or none")
        for flag, path in given.items():
            if path is not None and not path.exists():
                raise Usage("U060", f"--{flag} {path}: there is nothing there")
        self._same_vocabulary(given.get("beside"))
        who = [Contender("uaii", str(self.folder), self.traffic.weights)]
        absent = []
        for name in [n for n in others if not only or n in only]:
            path, reason, hint = self._place(name, given)
            if path is not None and find_spec(PEERS[name].module) is None:
                path, reason, hint = None, "not installed", f"pip install {PEERS[name].package}"
            if path is not None:
                who.append(Contender(name, str(path), self._read(name, path)))
            elif only:
                raise Usage("U065", f"{name} cannot be measured: {reason}", hint=hint)
            else:
                absent.append({"name": name, "reason": reason, "hint": hint})
        return who, absent

    def _same_vocabulary(self, other: Path | None) -> None:
        """The ids that are fed must mean a token to both artifacts."""
        if other is not None and (size := read_manifest(other).vocab_size) != self.manifest.vocab_size:
            raise Usage("U060", f"--beside {other} has {size} tokens, the artifact {self.manifest.vocab_size}",
                        hint="give an artifact of the same model, or of one with the same vocabulary")

    def _place(self, name: str, given: Mapping[str, Path | None]) -> tuple[Path | None, str, str]:
        """What the engine is to load, or why there is nothing and what to do."""
        gguf = given.get("gguf")
        if name == "artifact":
            return given.get("beside"), "no other artifact is given", "--beside DIR, for example one of other options"
        if name == "genai":
            why, hint = "it needs its own build of the model", "--genai DIR, made by onnxruntime-genai's model builder"
            return given.get("genai"), why, hint
        if name == "genai-artifact":
            own = self.folder if (self.folder / GENAI).is_file() else None
            return own, f"the artifact has no {GENAI}", "compile it again"
        if name == "llama.cpp" and gguf is not None:
            return gguf, "", ""
        wanted, hint = ("a GGUF file", "--gguf FILE") if name == "llama.cpp" else ("a Hugging Face folder", "compile from one")
        fits = self.source is not None and self.source.exists() and (self.source.is_dir() == (name == "transformers"))
        return (self.source if fits else None), f"the artifact's source is not {wanted} that is there", hint

    def _read(self, name: str, path: Path) -> int | None:
        if name == "genai-artifact":
            return self.traffic.weights
        if name == "artifact":
            steps = json.loads((path / NAME).read_text("utf-8")).get("pipeline")
            return int(steps[-1]["read_per_token"]) if steps else traffic(path / GRAPH).weights
        if name == "genai":
            return next((traffic(graph).weights for graph in self._graphs(path)), None)
        return stored(path, self.accept if path == self.source else (), as_f32=name == "transformers")

    def _graphs(self, folder: Path) -> Iterator[Path]:
        """The graph that a genai_config.json names, if it can be read."""
        try:
            graph = folder / json.loads((folder / GENAI).read_text("utf-8"))["model"]["decoder"]["filename"]
        except (OSError, ValueError, LookupError, TypeError):
            return
        if graph.is_file():
            yield graph

    def plan(self, settings: dict[str, Any], quick: bool) -> tuple[Plan, list[int]]:
        """What is measured, and the sizes that were left out for being beyond the model's context.

        Raises Usage U060 when not even the first prompt fits.
        """
        limit = self.manifest.context_length
        prompts = tuple(n for n in settings["prompts"] if n <= limit - WARM)
        steps = settings["context_steps"]
        most = limit - steps - 1  # at the model's own length the last steps must fit before its end
        contexts = tuple(dict.fromkeys(min(n, most) for n in settings["contexts"] if n <= limit and most > 0))
        if any(b - a < steps + 2 for a, b in pairwise(contexts)):
            raise Usage("U060", f"contexts {', '.join(map(str, contexts))} are less than {steps + 2} tokens apart",
                        why=f"{steps} tokens are generated at each", hint="choose --contexts or --context-steps otherwise")
        if not prompts or prompts[0] + settings["new"] >= limit or limit < 2 * 16:
            raise Usage("U060", f"a prompt of {settings['prompts'][0]} tokens and {settings['new']} new ones do not fit the "
                        f"context of {limit}", hint="choose --prompts and --new that do")
        plan = Plan(settings["threads"], prompts, settings["new"], contexts, settings["rounds"], settings["context_rounds"],
                    steps, QUICK_READ if quick else READ, 0.2 if quick else READ_SECONDS,
                    self.manifest.vocab_size)
        return plan, [*(n for n in settings["prompts"] if n not in prompts), *(n for n in settings["contexts"] if n > limit)]
