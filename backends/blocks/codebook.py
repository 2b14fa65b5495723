"""The kinds whose integers are looked up one by one in a table of 16: IQ4 and MXFP4."""
from __future__ import annotations

import numpy as np

from uaii.backends.blocks.kind import Array, Kind, fields, half, nibbles

IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
FP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)  # twice the values; scales are halved


def _iq4_xs_scale(raw: Array) -> Array:
    high = np.ascontiguousarray(raw[:, 2:4]).view(np.uint16) >> np.arange(0, 16, 2, dtype=np.uint16)
    low = fields(raw, 4, 8, 1, (0, 4), 15)
    return np.asarray(half(raw, 0) * ((low | ((high & 3) << 4)).astype(np.int16) - 32).astype(np.float32))


def _e8m0_half(raw: Array) -> Array:
    """2^(e - 128) as f32; e = 255 is not a number there, and not finite here."""
    e = raw[:, :1].astype(np.int32)
    return np.where(e == 255, np.nan, np.ldexp(np.float32(1), e - 128)).astype(np.float32)


CODEBOOK = {
    "iq4_nl": Kind(lambda r: IQ4[nibbles(r, 2, 18)], lambda r: half(r, 0)),
    "iq4_xs": Kind(lambda r: IQ4[fields(r, 8, 136, 16, (0, 4), 15)], _iq4_xs_scale),
    "mxfp4": Kind(lambda r: FP4[nibbles(r, 1, 17)], _e8m0_half),
}
