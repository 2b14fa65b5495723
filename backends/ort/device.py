"""Where a session runs: threads, onnxruntime's options, and the provider that is really in use."""
from __future__ import annotations

import ctypes
import math
import os
from pathlib import Path

import onnxruntime

from uaii.ir.diag import Unsupported, Usage

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
DEVICES = ("cpu", "cuda", "auto")


def usable_cores() -> int:
    """Physical cores that this process may use: CPU affinity, hyper-threads counted once, and the cgroup's quota."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cores = {_siblings(cpu) for cpu in os.sched_getaffinity(0)}
    return max(1, min(len(cores), _quota()))


def _siblings(cpu: int) -> str:
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _quota() -> int:
    try:
        allowed, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return math.ceil(int(allowed) / int(period))
    except (OSError, ValueError):
        return 1 << 16


def options(threads: int | None) -> onnxruntime.SessionOptions:
    """Session options for `threads` (default: `usable_cores()`).

    Nothing is written anywhere. Worker threads spin between nodes only while there is a core for each. The memory
    pattern is off because every step has another length; the logger is silent because each failure becomes a
    Diagnostic. Raises Usage S610 for a thread count below 1.
    """
    cores = usable_cores()
    if threads is not None and (type(threads) is not int or threads < 1):
        raise Usage("S610", f"threads must be a whole number of at least 1, not {threads!r}")
    chosen = onnxruntime.SessionOptions()
    chosen.intra_op_num_threads = threads or cores
    chosen.inter_op_num_threads = 1
    chosen.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    chosen.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    chosen.enable_mem_pattern = False
    chosen.log_severity_level = 4
    chosen.add_session_config_entry("session.intra_op.allow_spinning", "1" if (threads or cores) <= cores else "0")
    return chosen


def candidates(device: str, target: str) -> list[str]:
    """The providers to try, best first, for a requested device and the target an artifact was compiled for.

    Raises Usage S610 (no such device) and Unsupported S606 (CUDA asked for and not to be had).
    """
    if device not in DEVICES:
        raise Usage("S610", f"device must be one of {', '.join(DEVICES)}, not {device!r}")
    if device == "cpu" or (device == "auto" and target != "cuda"):
        return [CPU]
    missing = cuda_missing()
    if device == "auto":
        return [CPU] if missing else [CUDA, CPU]
    if target != "cuda":
        raise Unsupported("S606", f"the artifact was compiled for {target}, not for cuda",
                          why="its kernels and number formats were chosen for another provider",
                          hint="compile the checkpoint again with --target cuda, or run with --device cpu")
    if missing:
        raise no_cuda(missing)
    return [CUDA]


def cuda_missing() -> str:
    """What keeps onnxruntime from CUDA on this machine, in words; empty when nothing is known to."""
    if CUDA not in onnxruntime.get_available_providers():
        return "this onnxruntime has no CUDA provider (the onnxruntime-gpu package has)"
    onnxruntime.preload_dlls()
    library = Path(onnxruntime.__file__).parent / "capi" / "libonnxruntime_providers_cuda.so"
    for name in (library.with_name("libonnxruntime_providers_shared.so"), library):
        try:
            ctypes.CDLL(str(name), mode=os.RTLD_GLOBAL | os.RTLD_LAZY)
        except OSError as error:
            return str(error)
    return ""


def no_cuda(missing: str) -> Unsupported:
    """The refusal of an explicit `--device cuda`, with the missing piece in its sentence."""
    return Unsupported("S606", f"CUDA cannot be used: {missing}",
                       why="onnxruntime would run on the CPU instead and say so only in its log",
                       hint="install onnxruntime-gpu and the CUDA libraries it names, or use --device cpu or auto")
