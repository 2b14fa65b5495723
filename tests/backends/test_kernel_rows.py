"""Proof of the capability table: each row is run by onnxruntime against the reference, and beyond its limits it is refused."""
from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_run
import pytest
import uir

from uaii.backends import reference
from uaii.backends.onnx import emit
from uaii.backends.onnx.capabilities import CPU, TARGETS, target
from uaii.ir.core import OPS, Graph
from uaii.ir.diag import Usage
from uaii.ir.ops import ACTS, Attention, LatentAttention, MixtureOfExperts, Rope
from uaii.ir.parse import parse
from uaii.ir.stages import Stage
from uaii.ir.target import Kernel
from uaii.ir.types import FLOATS, PACKINGS
from uaii.passes.lower_attention import LowerAttention, LowerRope
from uaii.passes.lower_experts import LowerExperts, LowerLatentAttention

emit._load_rules()
EXACT, F32, PRODUCT = 0.0, 1e-6, 4e-6  # of the largest value: copies, elementwise f32, sums of products


@dataclass(frozen=True)
class Proof:
    """A graph that one row runs. `feeds` replaces random inputs; `int8` is the block in which x is rounded first, if it is."""

    name: str
    inputs: str
    body: str
    within: float = F32
    feeds: dict[str, Any] = field(default_factory=dict)
    int8: int = 0

    def graph(self) -> Graph:
        lines = [x.strip() for x in self.body.strip().split("\n")]
        results = lines[-1].split(" = ")[0].split(", ")
        body = "\n  ".join([*lines, "return " + ", ".join(f"{r[1:]}={r}" for r in results)])
        head = f"graph @proof stage=ort dims(B, S, P, T=P+S, L, R) ({self.inputs}) {{\n  "
        return parse(head + body + "\n}")

    def given(self) -> dict[str, Any]:
        graph, rng = self.graph(), np.random.default_rng(1)
        made = uir.feeds(graph)
        for v in graph.inputs:
            if v.type.elem in FLOATS:
                made[v.name] = rng.normal(size=made[v.name].shape).astype(np.float32)
        if "past_k" in made:  # new tokens after a past: the kernel takes one row of them at a time
            made |= {k: x[:1] for k, x in made.items() if k != "total"}
        return made | self.feeds


X = "%x: f32[B,S,64]"
XY = "%x: f32[B,S,64], %y: f32[B,S,64]"
WIDE = "%x: f32[B,S,4,24], %y: f32[B,S,4,24]"
PAST = "%past_k: f32[B,2,P,{d}], %past_v: f32[B,2,P,{d}], %lengths: i32[B], %total: i32[]"
MASKS = {"mask": np.array([[1] * 7, [1] * 5 + [0] * 2])}  # the second row ends in padding
LEFT = {"mask": np.array([[1] * 7, [0] * 2 + [1] * 5])}


def _linear(name: str, x: str = X, k: int = 64, bias: bool = False) -> Proof:
    lines = [f'@w : f32[24,{k}] = "w":f32[24,{k}]', '@b : f32[24] = "b":f32[24]'][: 2 if bias else 1]
    shape = x.partition("[")[2].rpartition(",")[0]
    return Proof(name, x, "\n".join([*lines, f"%z = linear %x, @w{', bias=@b' if bias else ''} : f32[{shape},24]"]), PRODUCT)


def _nbits(name: str, kind: str, bits: int, int8: bool, k: int = 96, bias: bool = False, x: str = "") -> Proof:
    block = PACKINGS[kind].size
    lines = [f'@q : u8[40,{k // block},{block * bits // 8}] = quants("w":{kind}[40,{k}], {bits})',
             f'@s : f32[40,{k // block}] = scales("w":{kind}[40,{k}])'] + ['@b : f32[40] = "b":f32[40]'] * bias
    shape = (x or f"%x: f32[B,S,{k}]").partition("[")[2].rpartition(",")[0]
    attrs = ", ".join([f"bits={bits}"] * (bits != 4) + [f"block={block}"] * (block != 32) + ["int8_activations=True"] * int8)
    tail = f" {{{attrs}}}" * bool(attrs)
    return Proof(name, x or f"%x: f32[B,S,{k}]", "\n".join([
        *lines, f"%z = matmul_nbits %x, @q, @s{', bias=@b' if bias else ''}{tail} : f32[{shape},40]"]), PRODUCT,
        int8=block * int8)


def _rows(kind: str, k: int) -> Proof:
    """Packed rows of this kind, looked up."""
    how = PACKINGS[kind]
    attrs = ", ".join([f"bits={how.bits}"] * (how.bits != 8) + [f"block={how.size}"] * (how.size != 32))
    return Proof(f"embedding of {kind} rows", "%ids: i64[B,S]", "\n".join([
        f'@t : u8[40,{k * how.bits // 8}] = reshape(quants("t":{kind}[40,{k}], {how.bits}), [40, {k * how.bits // 8}])',
        f'@s : f32[40,{k // how.size}] = scales("t":{kind}[40,{k}])',
        f"%z = embedding_nbits %ids, @t, @s{f' {{{attrs}}}' * bool(attrs)} : f32[B,S,{k}]"]), F32)


def _gqa(name: str, d: int = 32, heads: int = 4, turned: int = 0, attrs: str = "", packed: bool = False,
         feeds: dict[str, Any] | None = None, sinks: bool = False, at: int = 0) -> Proof:
    """`at` is the position of the first new token where it is not the past's length."""
    width = turned // 2
    tables = [f"@{t} : f32[16,{width}] = rope_{t}(rope_freqs(10000.0, {turned}, default), 16, 1.0)" for t in ("cos", "sin")]
    inputs = PAST.format(d=d) + (f", %q: f32[B,S,{(heads + 4) * d}]" if packed else
                                 f", %q: f32[B,S,{heads * d}], %k: f32[B,S,{2 * d}], %v: f32[B,S,{2 * d}]")
    named = ("" if packed else ", k=%k, v=%v") + (", cos=@cos, sin=@sin" if turned else "") + ", sinks=@sinks" * sinks
    if at:
        inputs, named = f"{inputs}, %pos: i64[B,S]", f"{named}, positions=%pos"
        feeds = {"pos": at + np.arange(3)[None]} | (feeds or {})
    return Proof(name, inputs, "\n".join([
        *(tables if turned else []), *([f'@sinks : f32[{heads}] = "sinks":f32[{heads}]'] if sinks else []),
        f"%z, %new_k, %new_v = gqa %q, %past_k, %past_v, %lengths, %total{named} {{heads={heads}, kv_heads=2, "
        f"scale=0.2{attrs}}} : f32[B,S,{heads * d}], f32[B,2,T,{d}], f32[B,2,T,{d}]"]), PRODUCT, feeds or {})


def _step(past: int, new: int, batch: int = 2, d: int = 32) -> dict[str, Any]:
    rng = np.random.default_rng([past, new])
    made: dict[str, Any] = {n: rng.normal(size=(batch, 2, past, d)) for n in ("past_k", "past_v")}
    made |= {n: rng.normal(size=(batch, new, w * d)) for n, w in (("q", 4), ("k", 2), ("v", 2))}
    return made | {"lengths": np.full(batch, past + new - 1, np.int32), "total": np.array(past + new, np.int32)}


def _experts(name: str, attrs: str = "top_k=2", correction: bool = False, bias: bool = False,
             kinds: tuple[str, str] | None = None) -> Proof:
    """Eight experts of 96 features over 64, or of a super-block over one where they are packed."""
    e, f = (256, 512) if kinds else (64, 96)
    operands, lines = "@fc1, @fc2", []
    bits, block = (max(PACKINGS[k].bits for k in kinds), min(PACKINGS[k].size for k in kinds)) if kinds else (32, 0)
    for n, (rows, width) in (("fc1", (2 * f, e)), ("fc2", (e, f))):
        shape = f"[8,{rows},{width}]"
        if kinds is None:
            lines.append(f'@{n} : f32{shape} = "{n}":f32{shape}')
            continue
        kind = kinds[n == "fc2"]
        packed, times = f"[8, {rows}, {width * bits // 8}]", PACKINGS[kind].size // block
        scales = f'scales("{n}":{kind}{shape})'
        lines += [f'@{n} : u8{packed.replace(" ", "")} = reshape(quants("{n}":{kind}{shape}, {bits}), {packed})',
                  f"@{n}s : f32[8,{rows},{width // block}] = {f'spread({scales}, {times})' if times > 1 else scales}"]
    attrs += f", bits={bits}, block={block}, int8_activations=True" * bool(kinds)
    named = ", fc1_scales=@fc1s, fc2_scales=@fc2s" * bool(kinds)
    if correction:
        lines, named = [*lines, '@c : f32[8] = "c":f32[8]'], f"{named}, correction=@c"
    if bias:
        lines += [f'@b1 : f32[8,{2 * f}] = "b1":f32[8,{2 * f}]', f'@b2 : f32[8,{e}] = "b2":f32[8,{e}]']
        named += ", fc1_bias=@b1, fc2_bias=@b2"
    body = "\n".join([*lines, f"%z = expert_kernel %x, %logits, {operands}{named} {{{attrs}}} : f32[B,S,{e}]"])
    return Proof(name, f"%x: f32[B,S,{e}], %logits: f32[B,S,8]", body, 2e-2 if kinds else PRODUCT)


def _branches(name: str, first: str, second: str, attrs: str = "top_k=2", bias: bool = False, n: int = 4) -> Proof:
    """Experts of 512 features over 256, in branches."""
    e, f, lines, named, said = 256, 512, [], "", attrs
    for part, kind, rows, width in (("fc1", first, 2 * f, e), ("fc2", second, e, f)):
        how, t = PACKINGS[kind], f'"{part}":{kind}[{n},{rows},{width}]'
        blocks = width // how.size
        lines += [f"@{part} : u8[{n},{rows},{blocks},{how.size * how.bits // 8}] = quants({t}, {how.bits})",
                  f"@{part}s : f32[{n},{rows},{blocks}] = scales({t})"]
        if how.affine:
            lines.append(f"@{part}o : f32[{n},{rows},{blocks}] = offsets({t})")
            named += f", {part}_offsets=@{part}o"
        said += f", bits{part[2]}={how.bits}" * (how.bits != 4) + f", block{part[2]}={how.size}" * (how.size != 32)
    if bias:
        lines += [f'@b1 : f32[{n},{2 * f}] = "b1":f32[{n},{2 * f}]', f'@b2 : f32[{n},{e}] = "b2":f32[{n},{e}]']
        named += ", fc1_bias=@b1, fc2_bias=@b2"
    body = "\n".join([*lines, f"%z = expert_branches %x, %logits, @fc1, @fc1s, @fc2, @fc2s{named} "
                      f"{{{said}, int8_activations=True}} : f32[B,S,{e}]"])
    return Proof(name, f"%x: f32[B,S,{e}], %logits: f32[B,S,{n}]", body, 2e-2)


def _latent(name: str, feeds: dict[str, Any] | None = None) -> Proof:
    """Five heads of 12 + 8 features over rows of 32 + 8."""
    inputs = ("%past_k: f32[B,1,P,40], %past_v: f32[B,1,P,40], %lengths: i32[B], %total: i32[], %qp: f32[B,S,5,12], "
              "%qt: f32[B,S,5,8], %c: f32[B,S,32], %kt: f32[B,S,1,8]")
    body = ('@k : f32[5,12,32] = "k":f32[5,12,32]\n@v : f32[5,6,32] = "v":f32[5,6,32]\n'
            "%z, %row, %same = latent_gqa %qp, %qt, %c, %kt, @k, @v, %past_k, %past_v, %lengths, %total {scale=0.2} : "
            "f32[B,S,30], f32[B,1,T,40], f32[B,1,T,40]")
    past = np.random.default_rng(5).normal(size=(1, 1, 4, 40))
    return Proof(name, inputs, body, PRODUCT, feeds or {"past_k": past, "past_v": past})


DEEPSEEK = "top_k=3, scores=sigmoid, scale=2.5, groups=4, groups_used=2, group_score=top2, floor=1e-20"
TWO_SETS = "@t : f32[2,8] = reshape(concat(rope_freqs(10000.0, 16, default), rope_freqs(500.0, 16, default)), [2, 8])"
PROOFS = [
    Proof("embedding", "%ids: i64[B,S]", '@t : f32[40,64] = "t":f32[40,64]\n%z = embedding %ids, @t : f32[B,S,64]', EXACT),
    Proof("embedding of packed rows", "%ids: i64[B,S]", '@t : u8[40,96] = reshape(quants("t":q8_0[40,96], 8), [40, 96])\n'
          '@s : f32[40,3] = scales("t":q8_0[40,96])\n%z = embedding_nbits %ids, @t, @s : f32[B,S,96]', F32),
    _linear("linear"), _linear("linear with a bias", bias=True), _linear("linear over heads", "%x: f32[B,S,4,24]", 24, True),
    _nbits("4 bits", "q4_0", 4, True), _nbits("4 bits with a bias", "q4_0", 4, True, bias=True),
    _nbits("4 bits, one block", "q4_1", 4, True, k=32), _nbits("4 bits over heads", "q4_0", 4, True, x="%x: f32[B,S,3,96]"),
    _nbits("8 bits", "q8_0", 8, True), _nbits("8 bits with a bias, 20 blocks", "q8_0", 8, True, k=640, bias=True),
    _nbits("4 bits and f32 activations", "q4_0", 4, False),
    _nbits("4 bits and f32 activations, bias", "q4_1", 4, False, bias=True),
    _nbits("8 bits, blocks of 16", "q6_k", 8, True, k=512, bias=True), _nbits("4 bits of a super-block", "q4_k", 4, True, k=256),
    _nbits("8 bits of a codebook", "iq4_xs", 8, True, k=256),
    Proof("blocks spread", X, "%z = block_spread %x {block=32} : f32[B,S,2048]", EXACT),
    _rows("q4_0", 96), _rows("q6_k", 256), _rows("q2_k", 256), _rows("q5_1", 64),
    Proof("block sums", X, "%z = block_sum %x {block=32} : f32[B,S,2]"),
    Proof("block sums of heads", "%x: f32[B,S,4,64]", "%z = block_sum %x {block=32} : f32[B,S,4,2]"),
    Proof("rms norm", X, '@w : f32[64] = "w":f32[64]\n%z = rms_norm %x, @w {eps=0.3} : f32[B,S,64]'),
    Proof("rms norm of heads", WIDE, '@w : f32[24] = "w":f32[24]\n%z = rms_norm %x, @w {eps=1e-05} : f32[B,S,4,24]'),
    Proof("skip rms norm", XY, '@w : f32[64] = "w":f32[64]\n'
          "%z, %s = skip_rms_norm %x, %y, @w {eps=0.3} : f32[B,S,64], f32[B,S,64]"),
    Proof("skip rms norm of rows", "%x: f32[S,64], %y: f32[S,64]",
          '@w : f32[64] = "w":f32[64]\n%z, %s = skip_rms_norm %x, %y, @w {eps=1e-06} : f32[S,64], f32[S,64]'),
    Proof("layer norm", X, '@w : f32[64] = "w":f32[64]\n@b : f32[64] = "b":f32[64]\n'
          "%z = layer_norm %x, weight=@w, bias=@b {eps=0.3} : f32[B,S,64]"),
    Proof("layer norm without a bias", X, '@w : f32[64] = "w":f32[64]\n%z = layer_norm %x, weight=@w {eps=1e-05} : f32[B,S,64]'),
    Proof("layer norm without a weight", X, '@b : f32[64] = "b":f32[64]\n%z = layer_norm %x, bias=@b {eps=1e-05} : f32[B,S,64]'),
    Proof("layer norm of each head", WIDE, '@w : f32[4,24] = "w":f32[4,24]\n@b : f32[4,24] = "b":f32[4,24]\n'
          "%z = layer_norm %x, weight=@w, bias=@b {eps=0.3} : f32[B,S,4,24]"),
    Proof("layer norm of each head without a bias", WIDE,
          '@w : f32[4,24] = "w":f32[4,24]\n%z = layer_norm %x, weight=@w {eps=1e-05} : f32[B,S,4,24]'),
    Proof("layer norm alone", X, "%z = layer_norm %x {eps=1e-05} : f32[B,S,64]"),
    *(Proof(f"last {keep} positions", X + ", %keep: i64[]", "%z = last_positions %x, %keep : f32[B,L,64]", EXACT,
            {"keep": np.int64(keep)}) for keep in (0, 1, 2, 3)),
    Proof("last positions unsaid", X + ", %keep: i64[] = 0", "%z = last_positions %x, %keep : f32[B,L,64]", EXACT),
    Proof("add", XY, "%z = add %x, %y : f32[B,S,64]"), Proof("mul", WIDE, "%z = mul %x, %y : f32[B,S,4,24]"),
    Proof("scale", X, "%z = scale %x {by=0.1} : f32[B,S,64]"), Proof("softcap", X, "%z = softcap %x {cap=0.7} : f32[B,S,64]"),
    Proof("clamp", X, "%z = clamp %x {limit=0.7} : f32[B,S,64]"),
    *(Proof(f"activation {a}", X, f"%z = activation %x {{act={a}}} : f32[B,S,64]") for a in ACTS),
    *(Proof(f"gated {a}", XY, f"%z = gated %x, %y {{act={a}}} : f32[B,S,64]") for a in ACTS),
    Proof("halves", X, "%g, %u = halves %x : f32[B,S,32], f32[B,S,32]", EXACT),
    Proof("two parts", X, "%g, %u = cut %x {at=48} : f32[B,S,48], f32[B,S,16]", EXACT),
    Proof("split heads", X, "%z = split_heads %x {n=4} : f32[B,S,4,16]", EXACT),
    Proof("merge heads", WIDE, "%z = merge_heads %x : f32[B,S,96]", EXACT),
    *(Proof(f"positions, {name}", "%mask: i64[B,T], %ids: i64[B,S]", "%z = positions %mask, %ids : i64[B,S]", EXACT, masks)
      for name, masks in (("no padding", {}), ("padding on the right", MASKS), ("padding on the left", LEFT))),
    *(Proof(f"temperature of {beta}", "%pos: i64[B,S]", f"%z = temperature %pos {{beta={beta}, length=64}} : f32[B,S]", 2e-6,
            {"pos": np.array([[0, 63, 64], [127, 128, 262143]])}) for beta in (0.1, -0.05)),
    Proof("rows scaled", X + ", %by: f32[B,S]", "%z = scale_rows %x, %by : f32[B,S,64]"),
    Proof("rows gated", X + ", %by: f32[B,S,1]", "%z = row_gate %x, %by : f32[B,S,64]"),
    Proof("rows of heads scaled", "%x: f32[B,S,4,16], %by: f32[B,S]", "%z = scale_rows %x, %by : f32[B,S,4,16]"),
    *(Proof(f"dynamic frequencies to {last}", "%pos: i64[B,S]",
            "%z = dynamic_freqs %pos {theta=10000.0, dim=32, factor=4.0, max_positions=64} : f32[16]", 2e-6,
            {"pos": np.array([[0, 1, 2], [0, 1, last]])}) for last in (3, 63, 64, 500)),
    *(Proof(f"frequencies of rows from {first} to {last} of {length}", "%pos: i64[B,S], %length: i64[]", "\n".join([
        TWO_SETS, "%z = length_freqs %pos, %length, @t {limit=64} : f32[B,8]"]), EXACT,
        {"pos": np.array([[0, 1, 2], [first, first + 1, last]]), "length": np.array(length)})
      for first, last, length in ((0, 63, 0), (0, 64, 0), (62, 63, 0), (65, 66, 0), (0, 9, 64), (0, 9, 65), (9, 70, 71))),
    Proof("rope table of rows", "%pos: i64[B,S], %f: f32[B,8]",
          "%c, %s = rope_table %pos, %f {magnitude=1.25} : f32[B,S,8], f32[B,S,8]", 2e-6),
    *(Proof(f"rope table, {name}", "%pos: i64[B,S]", '@f : f32[8] = rope_freqs(10000.0, 16, default)\n'
            f"%c, %s = rope_table %pos, @f{attrs} : f32[B,S,8], f32[B,S,8]", 2e-6) for name, attrs in
      (("plain", ""), ("with a magnitude", " {magnitude=1.25}"))),
    *(Proof(f"rotary, {name}", f"%x: f32[B,S,{4 * d}], %c: f32[B,S,{w}], %s: f32[B,S,{w}]",
            f"%z = rotary %x, %c, %s {{heads=4{attrs}}} : f32[B,S,{4 * d}]")
      for name, d, w, attrs in (("halves", 16, 8, ""), ("neighbours", 16, 8, ", interleaved=True"), ("part of a head", 16, 4, ""),
                                ("part, neighbours", 20, 4, ", interleaved=True"), ("an odd width", 6, 3, ""))),
    Proof("rows", "%x: f32[B,S,4,16]", "%z = flat_rows %x : f32[R,4,16]", EXACT),
    Proof("shape of positions", "%ids: i64[B,S]", "%z = grid_shape %ids {rest=[4, 16]} : i64[4]", EXACT),
    Proof("positions", "%ids: i64[B,S], %x: f32[B,S,64]", "%r = flat_rows %x : f32[R,64]\n"
          "%s = grid_shape %ids {rest=[64]} : i64[3]\n%z = grid_rows %r, %s : f32[B,S,64]", EXACT),
    Proof("heads of rows", "%x: f32[R,64]", "%z = split_heads %x {n=4} : f32[R,4,16]", EXACT),
    Proof("rows of heads", "%x: f32[R,4,16]", "%z = merge_heads %x : f32[R,64]", EXACT),
    Proof("a product that adds", "%y: f32[R,24], %x: f32[R,64]",
          '@w : f32[24,64] = "w":f32[24,64]\n%z = gemm %y, %x, @w : f32[R,24]', PRODUCT),
    Proof("key lengths", "%mask: i64[B,T]", "%z = key_lengths %mask : i32[B]", EXACT),
    Proof("key lengths, padding on the right", "%mask: i64[B,T]", "%z = key_lengths %mask : i32[B]", EXACT, MASKS),
    Proof("total length", "%mask: i64[B,T]", "%z = total_length %mask : i32[]", EXACT),
    Proof("key lengths from a later key on", "%mask: i64[B,T], %from: i64[]", "%z = key_lengths %mask, start=%from : i32[B]",
          EXACT, MASKS | {"from": np.array(3)}),
    Proof("total length from a later key on", "%mask: i64[B,T], %from: i64[]", "%z = total_length %mask, start=%from : i32[]",
          EXACT, {"from": np.array(3)}),
    _gqa("attention"), _gqa("attention, heads of 8", d=8), _gqa("attention, heads of 80", d=80, heads=2),
    _gqa("attention, a window", attrs=", window=3"), _gqa("attention, a window of one", attrs=", window=1"),
    _gqa("attention, a cap", attrs=", softcap=0.5"), _gqa("attention, cap and window", attrs=", softcap=2.0, window=4"),
    _gqa("attention, rotated", turned=32), _gqa("attention, rotated neighbours", turned=32, attrs=", interleaved=True"),
    _gqa("attention, partly rotated", turned=16), _gqa("attention, partly, neighbours", turned=16, attrs=", interleaved=True"),
    _gqa("attention, packed", packed=True), _gqa("attention, packed and rotated", packed=True, turned=32, attrs=", window=5"),
    _gqa("attention, nothing past", turned=32, feeds=_step(0, 5)),
    _gqa("attention, one new token", turned=32, feeds=_step(9, 1)),
    _gqa("attention, rotated, from a later key on", turned=32, attrs=", window=3", at=9),
    _gqa("attention, packed, sinks, from a later key on", packed=True, sinks=True, turned=32, attrs=", window=3", at=9),
    _gqa("attention, rows of one new token, each elsewhere", turned=32, at=1,
         feeds=_step(9, 1) | {"pos": np.array([[11], [14]])}),
    _gqa("attention, sinks", sinks=True), _gqa("attention, sinks and a window", sinks=True, attrs=", window=3"),
    _gqa("attention, sinks, packed and rotated", sinks=True, packed=True, turned=32, attrs=", window=5"),
    _gqa("attention, sinks, nothing past", sinks=True, turned=32, feeds=_step(0, 5)),
    _gqa("attention, sinks, one new token", sinks=True, feeds=_step(9, 1)),
    _gqa("attention, sinks, one new token past the window", sinks=True, attrs=", window=4", feeds=_step(9, 1)),
    _latent("latent attention"),
    _experts("experts"), _experts("experts, weights as they are", "top_k=3, renormalise=False"),
    _experts("experts, biases and a limit", "top_k=4, alpha=1.702, beta=1.0, limit=0.5", bias=True),
    _experts("experts, scaled softmax in groups", "top_k=2, renormalise=False, scale=3.0, groups=4, groups_used=2"),
    _experts("experts, corrected sigmoid in groups", DEEPSEEK, correction=True),
    _experts("experts, sigmoid weights as they are", DEEPSEEK + ", renormalise=False", correction=True),
    *(_experts(f"packed experts, {a} and {b}", kinds=(a, b)) for a, b in
      (("q4_0", "q4_0"), ("q4_0", "q8_0"), ("q8_0", "q5_0"), ("iq4_nl", "q6_k"))),
    _branches("expert branches, q4_k and q6_k", "q4_k", "q6_k"),
    _branches("expert branches, q5_k and q2_k", "q5_k", "q2_k", "top_k=1, renormalise=False"),
    _branches("expert branches, biases and a limit", "q4_1", "q5_1", "top_k=3, alpha=1.702, beta=1.0, limit=0.5", bias=True),
    _branches("expert branches, an odd number of experts", "q4_1", "q8_0", "top_k=2", n=5),
    _branches("expert branches, sigmoid in groups", "q8_0", "q4_1", DEEPSEEK.replace("top_k=3", "top_k=1")
              .replace("groups=4, groups_used=2", "groups=2, groups_used=1")),
    _experts("packed experts, corrected", DEEPSEEK, correction=True, kinds=("q8_0", "iq4_nl"), bias=True),
]
PROVED = {p.name: p for p in PROOFS}


def chosen(proof: Proof) -> Kernel:
    op = proof.graph().ops[-1]
    row = CPU.chosen(op)
    assert row is not None, CPU.refuses(op)
    return row


@pytest.mark.parametrize("name", PROVED)
def test_the_kernel_computes_what_the_op_means(name: str, tmp_path: Path) -> None:
    proof = PROVED[name]
    graph, given = proof.graph(), proof.given()
    graph.verify()
    assert all(CPU.refuses(op) is None for op in graph.ops)
    source = uir.RandomSource(graph)
    seen = given | {"x": onnx_run.int8_rows(given["x"], proof.int8)} if proof.int8 else given
    want = onnx_run.means(graph, source, seen)
    got = onnx_run.run(graph, source, given, tmp_path)
    for g, w in zip(got, want, strict=True):
        assert onnx_run.far(g, w) <= proof.within
    if proof.int8:
        noise = onnx_run.far(onnx_run.means(graph, source, given)[0], want[0])
        assert noise > 100 * proof.within, "the rounding of x does not show: this proves nothing about it"


def test_every_row_is_proved() -> None:
    assert {id(chosen(p)) for p in PROOFS} == {id(k) for k in CPU.kernels}
    assert all(k.proved for k in CPU.kernels)


def test_every_op_of_the_ort_stage_has_a_row_a_meaning_and_a_rule() -> None:
    # legal there until their pass has run
    lowered = {p.root for p in (LowerAttention, LowerRope, LowerExperts, LowerLatentAttention)}
    assert lowered == {Attention, Rope, MixtureOfExperts, LatentAttention}
    kernels = {op for op in OPS.values() if Stage.ORT in op.stages} - lowered
    assert {k.op for k in CPU.kernels} == kernels
    assert set(emit.RULES) == kernels


def test_every_op_has_a_meaning_and_every_activation_too() -> None:
    assert set(reference.RULES) == set(OPS.values())
    assert set(reference.ACTS) == set(ACTS)


def test_targets_are_named() -> None:
    assert target("cpu") is CPU and set(TARGETS) == {"cpu"}
    with pytest.raises(Usage) as caught:
        target("tpu")
    assert caught.value.code == "U021"


# --- just outside

OUTSIDE = [  # (proof, what the table says, does the kernel fail?)
    (_gqa("a rotation of 8 features", turned=8), "a rotation width that is a multiple of 16 and at most the head", True),
    (_gqa("a rotation wider than the head", d=16, turned=32),
     "a rotation width that is a multiple of 16 and at most the head", True),
    (_gqa("a rotation of 16 in heads of 24", d=24, turned=16), "a head size that is a multiple of 16 to rotate", True),
    (_gqa("heads of 12", d=12), "a head size that is a multiple of 8", True),
    (_gqa("heads of 4", d=4), "a head size that is a multiple of 8", True),
    (Proof("skip norm of heads", WIDE, '@w : f32[24] = "w":f32[24]\n%z, %s = skip_rms_norm %x, %y, @w {eps=1e-06} : '
           "f32[B,S,4,24], f32[B,S,4,24]"), "2 or 3 dimensions", True),
    # This runs, but not as a compiled model should: it dequantises the whole matrix at every call.
    (_nbits("8 bits and f32 activations", "q8_0", 8, False), "int8_activations in {True}, not False", False),
]


@pytest.mark.parametrize(("proof", "says", "fails"), OUTSIDE, ids=[p.name for p, _, _ in OUTSIDE])
def test_outside_its_limits_a_row_refuses(proof: Proof, says: str, fails: bool, tmp_path: Path) -> None:
    graph, given = proof.graph(), proof.given()
    refusal = CPU.refuses(graph.ops[-1])
    assert refusal is not None and says in refusal and CPU.chosen(graph.ops[-1]) is None
    source = uir.RandomSource(graph)
    if fails:
        with pytest.raises(Exception, match="INVALID_ARGUMENT|ShapeInferenceError"):
            onnx_run.run(graph, source, given, tmp_path)
    else:
        assert onnx_run.far(onnx_run.run(graph, source, given, tmp_path)[0], onnx_run.means(graph, source, given)[0]) < 1e-2


@pytest.mark.parametrize(("body", "says"), [
    ('@w : f32[64] = "w":f32[64]\n%z = rms_norm %x, @w {eps=0.3, offset=1.0} : f32[B,S,64]', "takes offset in {0.0}, not 1.0"),
    ('@w : f32[64] = "w":f32[64]\n%z = layer_norm %x, weight=@w {eps=0.3, offset=1.0} : f32[B,S,64]', "takes offset in {0.0}"),
])
def test_offsets_are_refused_by_the_table_and_by_emission(body: str, says: str) -> None:
    graph = Proof("", X, body).graph()
    assert says in str(CPU.refuses(graph.ops[-1]))
    with pytest.raises(Exception, match="folded before emission"):
        emit.emit(graph)


@pytest.mark.parametrize("elem", ["bf16", "f16", "f64"])
def test_other_float_types_are_refused(elem: str) -> None:
    graph = Proof("", f"%x: {elem}[B,S,64]", f"%z = scale %x {{by=2.0}} : {elem}[B,S,64]").graph()
    assert CPU.refuses(graph.ops[-1]) == f"Mul has no {elem} form"


@pytest.mark.parametrize("block", [16, 64])
@pytest.mark.parametrize("int8", [True, False])
def test_blocks_of_another_size_are_refused(block: int, int8: bool) -> None:
    graph = Proof("", X, f'@q : u8[8,{64 // block},{block // 2}] = "q":u8[8,{64 // block},{block // 2}]\n'
                  f'@s : f32[8,{64 // block}] = "s":f32[8,{64 // block}]\n%z = matmul_nbits %x, @q, @s '
                  f"{{block={block}{', int8_activations=True' * int8}}} : f32[B,S,8]").graph()
    assert f"takes block in {{32}}, not {block}" in str(CPU.refuses(graph.ops[-1]))


def test_several_rows_of_several_tokens_after_a_past_stop_the_run(tmp_path: Path) -> None:
    """The kernel's own limit, which no type shows; a batch is prefilled at once or advances by one token."""
    graph = PROVED["attention"].graph()
    with pytest.raises(Exception, match="batch_size must be 1 when sequence_length > 1 and past context is given"):
        onnx_run.run(graph, uir.RandomSource(graph), _step(4, 3), tmp_path)


def test_padding_on_the_left_stops_the_run(tmp_path: Path) -> None:
    """GroupQueryAttention counts keys from slot 0: a mask that begins with zeros would give wrong logits in silence."""
    graph = PROVED["key lengths"].graph()
    with pytest.raises(Exception, match="left_padding_is_not_supported"):
        onnx_run.run(graph, uir.RandomSource(graph), LEFT, tmp_path)


@pytest.mark.parametrize(("first", "last"), [(1, 64), (64, 64), (40, 200)])
def test_cached_keys_of_a_short_text_stop_a_long_one(first: int, last: int, tmp_path: Path) -> None:
    proof = next(p for p in PROOFS if "length_freqs" in p.body)
    feeds = {"pos": np.array([[0, 1, 2], [first, first, last]]), "length": np.array(0)}
    with pytest.raises(Exception, match="cached_keys_are_for_64_tokens_at_most.+out of data bounds"):
        onnx_run.run(proof.graph(), uir.RandomSource(proof.graph()), feeds, tmp_path)
