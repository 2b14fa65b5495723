"""Diagnostics: a code, a sentence, where, why, and what to do. Never a bare ValueError."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from uaii.ir.loc import Loc, leaves, show_leaf


def printable(text: str) -> str:
    """The text with whatever a terminal would obey or cannot encode written as an escape; line breaks stay."""
    return text if text.isprintable() else "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


class Diagnostic(Exception):
    """An error a user can read and act on; what it quotes of a file is made printable.

    `code` is listed in docs/errors.md, `says` is one sentence, `where` the origins it blames, `why` the reason the
    rule exists, `hint` what to do. `exit_code` is what the command line returns.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, code: str, says: str, where: Loc | None = None, *, why: str = "", hint: str = "",
                 notes: Sequence[str] = ()) -> None:
        self.code, self.says, self.where, self.why, self.hint = code, printable(says), where, printable(why), printable(hint)
        self.notes = [printable(n) for n in notes]
        super().__init__(code, self.says)

    def __str__(self) -> str:
        out = [f"error[{self.code}]: {self.says}"]
        if self.where is not None:
            places = list(dict.fromkeys(printable(show_leaf(x)) for x in leaves(self.where)))
            out += [f"  --> {p}" for p in places[:8]]
            out += [f"  --> ... and {len(places) - 8} more"] if places[8:] else []
        out += [f"   |  {note}" for note in self.notes]
        out += [f"   = why: {self.why}"] if self.why else []
        out += [f"   = help: {self.hint}"] if self.hint else []
        return "\n".join(out)

    def record(self) -> dict[str, Any]:
        """The JSON form: code, says, where (lines), why, hint, notes."""
        where = list(dict.fromkeys(printable(show_leaf(x)) for x in leaves(self.where))) if self.where else []
        return {"code": self.code, "says": self.says, "where": where, "why": self.why, "hint": self.hint,
                "notes": self.notes}


class Internal(Diagnostic):
    """A developer's error: the compiler contradicts itself. Exit code 1."""


class Usage(Diagnostic):
    """The command was given wrongly. Exit code 2."""

    exit_code = 2


class Unsupported(Diagnostic):
    """The input is well-formed and asks for something uaii does not do. Exit code 3."""

    exit_code = 3


class Malformed(Diagnostic):
    """The input is broken or incomplete. Exit code 4."""

    exit_code = 4
