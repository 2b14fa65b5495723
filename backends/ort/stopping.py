"""Stop strings in streamed text: nothing of a stop string is ever shown, wherever token borders fall."""
from __future__ import annotations

from collections.abc import Sequence

from uaii.ir.diag import Usage


class StopStrings:
    """Cuts a stream of text at the stop string that is complete first.

    The cut does not depend on how the text is split into pieces: it is as if characters came one by one; of two stop
    strings complete at the same character the longer one counts. Raises Usage S621 for an empty stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if isinstance(stops, str) or not all(isinstance(stop, str) and stop for stop in stops):
            raise Usage("S621", f"stop strings must be a list of texts that are not empty, not {stops!r}")
        self._stops, self._held = tuple(stops), ""
        self.matched: str | None = None

    def feed(self, piece: str) -> str:
        """The text that may be shown now; what could be the start of a stop string is held back."""
        self._held += piece
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            _, at, self.matched = min(found)
            return self._release(at)
        return self._release(len(self._held) - max((self._begun(stop) for stop in self._stops), default=0))

    def finish(self, piece: str) -> str:
        """The rest at the end of the text, after a last piece; a stop string completed by it still cuts."""
        shown = self.feed(piece)
        return shown if self.matched else shown + self._release(len(self._held))

    def _begun(self, stop: str) -> int:
        """How many characters at the end of the held text are the beginning of `stop`."""
        longest = min(len(stop) - 1, len(self._held))
        return next((n for n in range(longest, 0, -1) if self._held.endswith(stop[:n])), 0)

    def _release(self, count: int) -> str:
        shown, self._held = self._held[:count], self._held[count:]
        return shown
