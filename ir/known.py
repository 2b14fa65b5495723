"""Numbers and words that remember where they came from. They are ints, floats, strs, and flags that act as bools."""
from __future__ import annotations

from typing import Any

from uaii.ir.loc import Loc, join


class Known:
    """A plain value with an origin; arithmetic between known values keeps both origins.

    Python asks a plain float on the left of a known int for nothing but the number: write the known one first.
    """

    loc: Loc


class KInt(int, Known):
    def __add__(self, o: Any) -> Any: return known(int(self) + plain(o), self, o)
    def __radd__(self, o: Any) -> Any: return known(plain(o) + int(self), self, o)
    def __sub__(self, o: Any) -> Any: return known(int(self) - plain(o), self, o)
    def __rsub__(self, o: Any) -> Any: return known(plain(o) - int(self), self, o)
    def __mul__(self, o: Any) -> Any: return known(int(self) * plain(o), self, o)
    def __rmul__(self, o: Any) -> Any: return known(plain(o) * int(self), self, o)
    def __floordiv__(self, o: Any) -> Any: return known(int(self) // plain(o), self, o)
    def __rfloordiv__(self, o: Any) -> Any: return known(plain(o) // int(self), self, o)
    def __truediv__(self, o: Any) -> Any: return known(int(self) / plain(o), self, o)
    def __rtruediv__(self, o: Any) -> Any: return known(plain(o) / int(self), self, o)
    def __neg__(self) -> Any: return known(-int(self), self)
    def __pow__(self, o: Any, m: Any = None) -> Any: return known(int(self) ** plain(o), self, o)
    def __rpow__(self, o: Any, m: Any = None) -> Any: return known(plain(o) ** int(self), self, o)


class KFloat(float, Known):
    def __add__(self, o: Any) -> Any: return known(float(self) + plain(o), self, o)
    def __radd__(self, o: Any) -> Any: return known(plain(o) + float(self), self, o)
    def __sub__(self, o: Any) -> Any: return known(float(self) - plain(o), self, o)
    def __rsub__(self, o: Any) -> Any: return known(plain(o) - float(self), self, o)
    def __mul__(self, o: Any) -> Any: return known(float(self) * plain(o), self, o)
    def __rmul__(self, o: Any) -> Any: return known(plain(o) * float(self), self, o)
    def __truediv__(self, o: Any) -> Any: return known(float(self) / plain(o), self, o)
    def __rtruediv__(self, o: Any) -> Any: return known(plain(o) / float(self), self, o)
    def __neg__(self) -> Any: return known(-float(self), self)
    def __pow__(self, o: Any, m: Any = None) -> Any: return known(float(self) ** plain(o), self, o)
    def __rpow__(self, o: Any, m: Any = None) -> Any: return known(plain(o) ** float(self), self, o)


class KStr(str, Known):
    pass


class KBool(int, Known):
    """bool cannot be subclassed; this has its truth and its printed form."""

    def __repr__(self) -> str:
        return repr(bool(self))


_KINDS: dict[type, type] = {int: KInt, float: KFloat, str: KStr, bool: KBool}


def known(value: Any, *origins: Any) -> Any:
    """`value` with the joined origins of `origins` (Known values or Locs); as it is when none has one.

    None and containers carry no origin of their own.
    """
    locs = [o.loc if isinstance(o, Known) else o for o in origins if isinstance(o, Known | Loc)]
    value = plain(value)
    if not locs or type(value) not in _KINDS:
        return value
    made = _KINDS[type(value)](value)
    made.loc = join(*locs)
    return made


def plain(x: Any) -> Any:
    """The value without its origin."""
    match x:
        case KBool():
            return bool(x)
        case KInt():
            return int(x)
        case KFloat():
            return float(x)
        case KStr():
            return str(x)
        case _:
            return x


def origin(x: Any) -> Loc | None:
    return x.loc if isinstance(x, Known) else None
