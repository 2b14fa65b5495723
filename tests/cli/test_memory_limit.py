"""A weight that no memory holds is refused by its name before anything is written, by inspect and compile alike."""
from __future__ import annotations

from pathlib import Path

import pytest
import tiny_llama_for_cli as tiny

from uaii import measure
from uaii.compiler import compile_model
from uaii.inspection import inspect
from uaii.ir.diag import Unsupported
from uaii.measure import fits_memory


@pytest.mark.parametrize(("total", "ok"), [(1, False), (3000, False), (10 ** 9, True), (0, True)])
def test_the_largest_weight_against_the_memory(tmp_path: Path, total: int, ok: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """0 is a system that does not say."""
    source = tiny.folder(tmp_path / "model")
    monkeypatch.setattr(measure, "available_bytes", lambda: (total, total))
    assert inspect(source).ok is ok
    if ok:
        compile_model(source, tmp_path / "out")
        return
    with pytest.raises(Unsupported, match=r"weight @?[\w.]+ is .* which exceeds the memory of this process") as err:
        compile_model(source, tmp_path / "out")
    (blocker,) = inspect(source).blockers
    assert err.value.code == blocker.code == "C402" and err.value.says == blocker.says
    assert inspect(source).gates["weights"].state == "blocked" and not (tmp_path / "out").exists()


def test_it_is_the_largest_weight_that_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from uaii.compiler import through_passes

    graph = through_passes(tiny.folder(tmp_path / "model")).graph
    largest = max(w.type.nbytes for w in graph.weights.values())
    for total, ok in ((largest, True), (largest - 1, False)):
        monkeypatch.setattr(measure, "available_bytes", lambda total=total: (total, 0))
        if ok:
            fits_memory(graph)
        else:
            with pytest.raises(Unsupported):
                fits_memory(graph)
