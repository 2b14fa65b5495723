"""The kinds whose integers are looked up: IQ4 and MXFP4 by a table of 16, the IQ1 to IQ3 kinds by ggml's grids."""
from __future__ import annotations

from collections.abc import Callable

import gguf
import numpy as np

from uaii.backends.blocks.kind import Array, Kind, fields, half, nibbles
from uaii.ir.types import PACKINGS

IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
FP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)  # twice the values; scales are halved


def _iq4_xs_scale(raw: Array) -> Array:
    high = np.ascontiguousarray(raw[:, 2:4]).view(np.uint16) >> np.arange(0, 16, 2, dtype=np.uint16)
    low = fields(raw, 4, 8, 1, (0, 4), 15)
    return half(raw, 0) * ((low | ((high & 3) << 4)).astype(np.int16) - 32).astype(np.float32)


def _e8m0_half(raw: Array) -> Array:
    """2^(e - 128) as f32; e = 255 is not a number there, and not finite here."""
    e = raw[:, :1].astype(np.int32)
    return np.where(e == 255, np.nan, np.ldexp(np.float32(1), e - 128)).astype(np.float32)


def _bits32(raw: Array, start: int, stop: int) -> Array:
    return np.ascontiguousarray(raw[:, start:stop]).view(np.uint32)


def _quarter(raw: Array, four_bits: Array, by: float) -> Array:
    return half(raw, 0) * (np.float32(0.5) + four_bits.astype(np.float32)) * np.float32(by)


def _iq2_xxs_scale(raw: Array) -> Array:
    return _quarter(raw, _bits32(raw, 2, 66).reshape(len(raw), 8, 2)[:, :, 1] >> 28, 0.25)


def _iq2_xs_scale(raw: Array) -> Array:
    return _quarter(raw, fields(raw, 66, 74, 1, (0, 4), 15), 0.25)


def _iq2_s_scale(raw: Array) -> Array:
    return _quarter(raw, fields(raw, 74, 82, 1, (0, 4), 15), 0.25)


def _iq3_xxs_scale(raw: Array) -> Array:
    return _quarter(raw, _bits32(raw, 66, 98) >> 28, 0.5)


def _iq3_s_scale(raw: Array) -> Array:
    return half(raw, 0) * (1 + 2 * fields(raw, 106, 110, 1, (0, 4), 15)).astype(np.float32)


def _iq1_s_scale(raw: Array) -> Array:
    high = np.ascontiguousarray(raw[:, 34:50]).view(np.uint16)
    return half(raw, 0) * (2 * ((high >> 12) & 7) + 1).astype(np.float32) * np.float32(0.125)


def _iq1_m_scale(raw: Array) -> Array:
    words = np.ascontiguousarray(raw[:, 48:56]).view(np.uint16)
    d = ((words[:, 0:1] >> 12) | ((words[:, 1:2] >> 8) & 0x00F0) | ((words[:, 2:3] >> 4) & 0x0F00) | (words[:, 3:4] & 0xF000))
    three = (words.reshape(len(raw), 4, 1) >> np.arange(0, 12, 3, dtype=np.uint16)) & 7
    return d.view(np.float16).astype(np.float32) * (2 * three.reshape(len(raw), 16) + 1).astype(np.float32) * np.float32(0.125)


def _from_values(kind: str, scale: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Integers as value / scale, which is exact: the grids are gguf's own. Blocks are looked up with a scale of one."""
    def integers(raw: Array) -> Array:
        unit = _unit_scale(raw, kind)
        values = np.asarray(gguf.dequantize(unit, gguf.GGMLQuantizationType[kind.upper()])).reshape(-1, PACKINGS[kind].size)
        return np.rint(values / scale(unit).reshape(-1, 1)).astype(np.int8).reshape(len(raw), -1)
    return integers


def _unit_scale(raw: Array, kind: str) -> Array:
    """The same blocks with d = 1, so that a zero or tiny scale hides no integer."""
    out = raw.copy()
    one = np.frombuffer(np.float16(1).tobytes(), np.uint8)
    if kind != "iq1_m":
        out[:, 0:2] = one
        return out
    words = np.ascontiguousarray(out[:, 48:56]).view(np.uint16)
    words &= 0x0FFF
    words[:, 2] |= np.uint16(0xC000)  # 0x3C00 is 1.0 in f16: its four nibbles are spread over the words, lowest first
    words[:, 3] |= np.uint16(0x3000)
    out[:, 48:56] = words.view(np.uint8).reshape(len(raw), 8)
    return out


_SCALES = {"iq2_xxs": _iq2_xxs_scale, "iq2_xs": _iq2_xs_scale, "iq2_s": _iq2_s_scale, "iq3_xxs": _iq3_xxs_scale,
           "iq3_s": _iq3_s_scale, "iq1_s": _iq1_s_scale, "iq1_m": _iq1_m_scale}
CODEBOOK = {
    "iq4_nl": Kind(lambda r: IQ4[nibbles(r, 2, 18)], lambda r: half(r, 0)),
    "iq4_xs": Kind(lambda r: IQ4[fields(r, 8, 136, 16, (0, 4), 15)], _iq4_xs_scale),
    "mxfp4": Kind(lambda r: FP4[nibbles(r, 1, 17)], _e8m0_half),
    **{kind: Kind(_from_values(kind, scale), scale) for kind, scale in _SCALES.items()},
}
