"""Threads and providers: what is used by default, and that CUDA is never pretended."""
from pathlib import Path

import onnxruntime
import pytest
from tiny_artifact import tiny_model, write_artifact

from uaii.backends.ort import device
from uaii.backends.ort.session import Session
from uaii.ir.diag import Diagnostic, Unsupported


def refused(code: str) -> object:
    return pytest.raises(Diagnostic, match=code)


@pytest.mark.parametrize("threads", [0, -1, 1.5, True])
def test_thread_counts(tmp_path: Path, threads: object) -> None:
    with refused("S610"):
        Session.open(write_artifact(tmp_path, tiny_model()), threads=threads)


def test_threads_default_to_the_cores_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device.os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 4, 5})
    monkeypatch.setattr(device, "_siblings", lambda cpu: str(cpu // 2))
    monkeypatch.setattr(device, "_quota", lambda: 1000)
    assert device.options(None).intra_op_num_threads == 3
    monkeypatch.setattr(device, "_quota", lambda: 2)
    assert device.options(None).intra_op_num_threads == 2
    spinning = "session.intra_op.allow_spinning"
    assert [device.options(n).get_session_config_entry(spinning) for n in (2, 3)] == ["1", "0"]


def test_cuda_is_never_pretended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = write_artifact(tmp_path / "cpu", tiny_model())
    cuda = write_artifact(tmp_path / "cuda", tiny_model(), target="cuda")
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(Unsupported, match="no CUDA provider") as caught:
        Session.open(cuda, device="cuda")
    assert (caught.value.code, caught.value.exit_code) == ("S606", 3)
    with pytest.raises(Unsupported, match="compiled for cpu"):
        Session.open(cpu, device="cuda")
    assert Session.open(cuda, device="auto").provider == "CPUExecutionProvider"
    monkeypatch.setattr(device, "cuda_missing", lambda: "libcublas.so.12: cannot open shared object file")
    with pytest.raises(Unsupported, match="libcublas"):
        Session.open(cuda, device="cuda")
    with refused("S610"):
        Session.open(cpu, device="tpu")


def test_a_provider_that_falls_back_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = write_artifact(tmp_path, tiny_model(), target="cuda")
    monkeypatch.setattr(device, "cuda_missing", lambda: "")
    monkeypatch.setattr(device, "CUDA", "CPUExecutionProvider")
    assert Session.open(cuda, device="cuda").provider == "CPUExecutionProvider"
    monkeypatch.setattr(device, "CUDA", "CUDAExecutionProvider")
    monkeypatch.setattr(device, "candidates", lambda *_: ["CPUExecutionProvider"])
    with pytest.raises(Unsupported, match="could not start"):
        Session.open(cuda, device="cuda")
