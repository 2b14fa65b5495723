"""`uaii doctor`: whether this machine has what uaii needs, and the command that mends what it has not."""
from __future__ import annotations

import importlib
import os
import platform
import re
import shutil
import sys
import tomllib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import click

import uaii
from uaii.cli.demo import cache_dir
from uaii.cli.shell import FORMAT, data, guarded
from uaii.ir.memory import available_bytes, size

IMPORTED = {"protobuf": "google.protobuf"}  # where the module is not called as its package
NEEDED = "CPUExecutionProvider"
SPEED = ("avx", "avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "amx_bf16",  # x86
         "asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve")  # Arm


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: `state` is ok, note or problem; `fix` is the command that mends a problem."""

    name: str
    value: str
    state: str = "ok"
    fix: str = ""


@click.command()
@FORMAT
@guarded
def main(fmt: str) -> None:
    """Check this machine: packages, onnxruntime's providers, processor, memory, cache. Exit code 3 when something is amiss.

    It looks at no model: uaii inspect MODEL does.
    """
    found = [*python(), *packages(), *providers(), *machine(), *cache(), hub()]
    well = all(f.state != "problem" for f in found)
    if fmt == "json":
        data({"ok": well, "findings": [vars(f) for f in found]})
    else:
        click.echo("\n".join(line for f in found for line in lines(f)))
        click.echo("status: " + ("ok" if well else "problems found") + "\nfor a model: uaii inspect MODEL")
    sys.exit(0 if well else 3)


def lines(f: Finding) -> list[str]:
    """A finding for a person."""
    mark = "" if f.state == "ok" else f"  ({f.state})"
    return [f"{f.name:<24} {f.value}{mark}", *([f"   = help: {f.fix}"] if f.fix else [])]


def python() -> Iterator[Finding]:
    """uaii itself and the interpreter."""
    needs = _declared()[1]
    fits = satisfies(platform.python_version(), needs)
    yield Finding("uaii", f"{uaii.__version__} at {Path(uaii.__file__).parent}")
    yield Finding("python", f"{platform.python_version()}, {platform.system()} {platform.machine()}", "ok" if fits else "problem",
                  "" if fits else f"make a virtual environment with Python {needs}")


def packages() -> Iterator[Finding]:
    """Every package that uaii depends on: imported, and its version compared with what uaii declares."""
    for requirement in _declared()[0]:
        name, wanted = split(requirement)
        yield package(name, wanted)
    both = [d for d in ("onnxruntime", "onnxruntime-gpu") if _version(d)]
    if both[1:]:
        yield Finding("onnxruntime twice", " and ".join(both), "problem",
                      "pip uninstall -y onnxruntime onnxruntime-gpu && pip install onnxruntime-gpu (or onnxruntime)")


def package(name: str, wanted: str) -> Finding:
    """Whether one package can be imported in a version that fits."""
    mend = f'pip install "{name}{wanted}"'
    try:
        module = importlib.import_module(IMPORTED.get(name, name))
    except ModuleNotFoundError as err:
        absent = err.name in (IMPORTED.get(name, name), None)
        return Finding(name, "not installed" if absent else f"needs {err.name}, which is not installed", "problem",
                       mend if absent else f"pip install {err.name}")
    except Exception as err:  # a broken binary package raises anything
        return Finding(name, f"cannot be imported: {type(err).__name__}: {err}", "problem", f"{mend} --force-reinstall")
    version = _version(name) or str(getattr(module, "__version__", "unknown"))
    if not satisfies(version, wanted):
        return Finding(name, f"{version}, uaii needs {wanted}", "problem", mend)
    return Finding(name, version)


def providers() -> Iterator[Finding]:
    """onnxruntime's providers, each proved with a session of one node: the list that it prints says nothing."""
    try:
        import onnxruntime
        onnxruntime.set_default_logger_severity(4)
        model = tiny_model()
        names = onnxruntime.get_available_providers()
    except Exception as err:  # what is wrong is said by packages() already
        yield Finding(NEEDED, f"not checked ({type(err).__name__})", "problem", "mend the packages above first")
        return
    for name in names:
        reason = unusable(model, name)
        state = "ok" if not reason else "problem" if name in (NEEDED, "CUDAExecutionProvider") else "note"
        fix = "install the libraries that it names, or pip install --force-reinstall onnxruntime"
        yield Finding(name, reason or "usable", state, fix if state == "problem" else "")


def unusable(model: bytes, provider: str) -> str:
    """Why a provider cannot run a session here; empty when it can. `model` is a serialised graph."""
    import onnxruntime

    from uaii.backends.ort.device import CUDA, cuda_missing
    if provider == CUDA and (missing := cuda_missing()):
        return f"not usable: {missing}"
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        with warnings.catch_warnings():  # the answer is in get_providers()
            warnings.simplefilter("ignore")
            used = onnxruntime.InferenceSession(model, options, providers=[provider]).get_providers()
    except Exception as err:  # a provider raises whatever its library does
        return f"not usable: {str(err).splitlines()[0][:160]}"
    return "" if used[:1] == [provider] else f"not usable: onnxruntime took {', '.join(used)} instead"


def tiny_model() -> bytes:
    """A graph of one Add, serialised."""
    from onnx import TensorProto, helper
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "tiny", [x], [y])
    made: bytes = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    return made


def machine() -> Iterator[Finding]:
    """Processor and memory, as far as the system says."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        from uaii.backends.ort.device import usable_cores
        yield Finding("processor", f"{usable_cores()} cores for uaii, {allowed} threads allowed of {os.cpu_count()}")
    except ImportError:
        yield Finding("processor", f"{allowed} threads allowed of {os.cpu_count()}")
    said = re.search(r"^(?:flags|Features)\s*:(.*)$", _text("/proc/cpuinfo"), re.M)
    have = [s for s in SPEED if said and s in said[1].split()]
    yield Finding("instructions", " ".join(have) or "unknown", "ok" if have else "note")
    total, free = available_bytes()
    yield Finding("memory", f"{size(total)}, {size(free)} free" if total else "unknown", "ok" if total else "note")


def cache() -> Iterator[Finding]:
    """Where uaii keeps pulled models and compiled artifacts, and whether it can."""
    folder = cache_dir()
    held = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file() and not p.is_symlink())
    there = next(p for p in (folder, *folder.parents) if p.exists())
    writable = there.is_dir() and os.access(there, os.W_OK)
    free = shutil.disk_usage(there).free
    yield Finding("cache", f"{folder}: {size(held)} held, {size(free)} free on its disk" + ("" if writable else ", not writable"),
                  "ok" if writable else "problem", "" if writable else "export UAII_CACHE=DIR, a folder you may write")


def hub() -> Finding:
    """Who moves the bytes of `uaii pull`; either way is well."""
    from uaii.frontend.hub.package import RANGE, find
    package = find()
    return Finding("uaii pull", f"by huggingface_hub {package.__version__}" if package else
                   f"by uaii's own requests (no huggingface_hub {RANGE} here)")


def _declared() -> tuple[list[str], str]:
    """What uaii requires: packages and Python; from its installed metadata, or from pyproject.toml in a checkout."""
    project = Path(uaii.__file__).resolve().parent.parent / "pyproject.toml"
    if project.is_file():
        said: dict[str, Any] = tomllib.loads(project.read_text("utf-8"))["project"]
        return list(said["dependencies"]), str(said["requires-python"])
    needs = [r for r in metadata.requires("uaii") or [] if "extra ==" not in r]
    return needs, metadata.metadata("uaii")["Requires-Python"] or ""


def split(requirement: str) -> tuple[str, str]:
    """A requirement's name and version bounds: "numpy>=2.0,<3" is ("numpy", ">=2.0,<3")."""
    name = re.split(r"[^\w.-]", requirement.strip())[0]
    return name, requirement.strip().removeprefix(name).split(";")[0].strip()


def satisfies(version: str, bounds: str) -> bool:
    """Whether a version lies within bounds of the form >=A,<B; suffixes such as rc1 do not count."""
    order = {">=": lambda a, b: a >= b, "<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b,
             "==": lambda a, b: a == b, "!=": lambda a, b: a != b}
    return all(order[op](_numbers(version), _numbers(at)) for op, at in re.findall(r"([<>=!]=?)\s*([\w.]+)", bounds))


def _numbers(version: str) -> tuple[int, ...]:
    found = [int(n) for n in re.findall(r"\d+", version.split("+")[0].split("rc")[0])[:3]]
    return tuple(found + [0] * (3 - len(found)))


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
