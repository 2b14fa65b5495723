"""What a graph costs a token, by hand; whole models are measured in the tests of explain and bench."""
from __future__ import annotations

import pytest

from uaii import measure
from uaii.ir.parse import parse

BEFORE = """graph @g stage=ort dims(B, S) (
  %x: f32[B,S,64]
  %r: f32[B,S,4]
) {
  @m.gate : bf16[4,32,64] = "g":bf16[4,32,64]
  @m.up : bf16[4,32,64] = "u":bf16[4,32,64]
  @m.down : bf16[4,64,32] = "d":bf16[4,64,32]
  @m.c : f32[4] = "c":f32[4]
  %y = mixture_of_experts %x, %r, @m.gate, @m.up, @m.down, correction=@m.c {top_k=TAKEN} : f32[B,S,64]
  return y=%y
}
"""
KERNEL = """graph @g stage=ort dims(B, S) (
  %x: f32[B,S,64]
  %r: f32[B,S,4]
) {
  @m.fc1 : f32[4,64,64] = interleave("g":f32[4,32,64], "u":f32[4,32,64])
  @m.fc2 : f32[4,64,32] = "d":f32[4,64,32]
  %y = expert_kernel %x, %r, @m.fc1, @m.fc2 {top_k=TAKEN} : f32[B,S,64]
  return y=%y
}
"""


@pytest.mark.parametrize("taken", [1, 2, 4])
def test_a_step_reads_the_experts_that_it_takes(taken: int) -> None:
    """The correction is read whole: every expert is scored."""
    assert measure.read_per_token(parse(BEFORE.replace("TAKEN", str(taken)))) == taken * 3 * 32 * 64 * 2 + 4 * 4
    assert measure.read_per_token(parse(KERNEL.replace("TAKEN", str(taken)))) == taken * (64 * 64 + 64 * 32) * 4
