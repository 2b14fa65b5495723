"""A file and the sha256 of its bytes, taken while they are written."""
from __future__ import annotations

import hashlib
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

Bytes = memoryview | bytes


class Hashed:
    """A new file, written from its start to its end. A thread sums up what is being written, one write at a time, so that no more
    than that waits in memory; a read of the whole file afterwards would take as long again."""

    def __init__(self, path: Path) -> None:
        self.size = 0
        self._file, self._sum, self._pool = path.open("wb"), hashlib.sha256(), ThreadPoolExecutor(1)
        self._summing: Future[None] | None = None

    def write(self, data: Bytes) -> None:
        """Appends. `data` must not change before the next call."""
        self._settle()
        self._summing = self._pool.submit(self._sum.update, data)
        self.size += self._file.write(data)

    def align(self, to: int) -> int:
        """Appends zeros up to a multiple of `to` bytes; returns where that is."""
        if missing := -self.size % to:
            self.write(bytes(missing))
        return self.size

    def sha256(self) -> str:
        """Of everything written so far, in hex."""
        self._settle()
        return self._sum.hexdigest()

    def _settle(self) -> None:
        if self._summing is not None:
            self._summing.result()

    def __enter__(self) -> Hashed:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pool.shutdown()
        self._file.close()
