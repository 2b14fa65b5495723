"""Malformed GGUF files: bytes, and the code, the place and a part of the reason that each is refused with."""
from __future__ import annotations

import struct

from raw_gguf import Raw, gguf_bytes, pair

ARCH = ("general.architecture", "str", "llama")
F32, Q4_0, Q8_0 = 0, 2, 8
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 4976698672\n"


def tensor(name: str | bytes = "w", dims: tuple[int, ...] = (2, 3), kind: int = F32, data: bytes | None = None,
           **more: int) -> Raw:
    return Raw(name, dims, kind, bytes(range(24)) if data is None else data, **more)


BIG = 2**62
RAW_ARRAY = struct.pack("<IIQ", 9, 8, 2**40)
MALFORMED: dict[str, tuple[bytes | str, str, str, str]] = {
    "pickle": (b"PK\x03\x04" + bytes(40), "G300", "byte 0", "zip archive"),
    "ggjt": (b"tjgg" + bytes(40), "G300", "byte 0", "GGML file from before GGUF"),
    "lfs": (LFS, "G301", "", "this is a Git LFS pointer (real size 4976698672 bytes); run git lfs pull"),
    "html": ("\n<!DOCTYPE html><html>", "G301", "byte 0", "is a web page (HTML)"),
    "empty": (b"", "G301", "", "m.gguf is empty (0 bytes)"),
    "zeros": (bytes(8), "G301", "byte 0", "begins with zeros only"),
    "four bytes": (b"GGUF", "G303", "byte 4", "needs at least 24 bytes and has 4"),
    "two bytes": (b"GG", "G303", "byte 2", "needs at least 24 bytes and has 2"),
    "v1": (gguf_bytes(version=1), "G302", "byte 4", "has GGUF version 1; versions 2 and 3 are read"),
    "v4": (gguf_bytes(version=4), "G302", "byte 4", "has GGUF version 4"),
    "v0": (gguf_bytes(version=0), "G302", "byte 4", "has GGUF version 0"),
    "big endian": (b"GGUF" + struct.pack(">Iqq", 3, 0, 0), "G302", "byte 4", "is a big-endian GGUF file"),
    "n_kv 2^62": (gguf_bytes([ARCH], n_pairs=BIG), "G303", "byte 8", f"{BIG} keys are declared"),
    "n_tensors 2^62": (gguf_bytes([ARCH], n_tensors=BIG), "G303", "byte 8", f"{BIG} tensors"),
    "n_kv negative": (gguf_bytes([ARCH], n_pairs=-1), "G303", "byte 8", "-1 keys"),
    "n_tensors negative": (gguf_bytes([ARCH], n_tensors=-1), "G303", "byte 8", "-1 tensors"),
    "one key short": (gguf_bytes([ARCH] * 1, n_pairs=2), "G303", "byte 69",
                      "the length of a key needs 77 bytes and the file has 69"),
    "string 2^63": (gguf_bytes([("k", "raw", struct.pack("<IQ", 8, 2**63) + bytes(30))]), "G303", "byte 45", "k needs"),
    "key 2^63": (b"GGUF" + struct.pack("<IqqQ", 3, 0, 1, 2**63) + bytes(30), "G303", "byte 32", "a key needs"),
    "array 2^40": (gguf_bytes([("k", "raw", RAW_ARRAY)]), "G303", "byte 49",
                   f"k needs {49 + 2**43} bytes and the file has 49"),
    "array of u8 2^63": (gguf_bytes([("k", "raw", struct.pack("<IIQ", 9, 0, 2**63))]), "G303", "byte 49", "k needs"),
    "element cut": (gguf_bytes([("k", "raw", struct.pack("<IIQQ", 9, 8, 1, 99))]), "G303", "byte 49", "element 0 of k"),
    "second element cut": (gguf_bytes([("k", "raw", struct.pack("<IIQQQ", 9, 8, 2, 8, 0))]), "G303", "byte 65",
                           "element 1 of k"),
    "empty key": (gguf_bytes([("", "u32", 1)]), "G304", "byte 24", "a key is empty"),
    "key with escape": (gguf_bytes([("a\x1b[31m", "u32", 1)]), "G304", "byte 24", r"a key is 'a\x1b[31m'"),
    "key not UTF-8": (gguf_bytes([(b"a\xff", "u32", 1)]), "G304", "byte 24", "a key is"),
    "key twice": (gguf_bytes([ARCH, ARCH]), "G304", f"byte {24 + len(pair(*ARCH))}",
                  "general.architecture is there twice"),
    "value type 13": (gguf_bytes([("k", "raw", struct.pack("<I", 13) + bytes(8))]), "G305", "byte 33", "value type 13"),
    "nested array": (gguf_bytes([("k", "raw", struct.pack("<IIQ", 9, 9, 1))]), "G305", "byte 37",
                     "k is an array of arrays"),
    "element type 99": (gguf_bytes([("k", "raw", struct.pack("<IIQ", 9, 99, 1))]), "G305", "byte 37",
                        "elements of type 99"),
    "nan": (gguf_bytes([("k", "f32", float("nan"))]), "G305", "byte 33", "k is nan"),
    "alignment 0": (gguf_bytes([("general.alignment", "u32", 0)]), "G306", "general.alignment", "is 0 (u32)"),
    "alignment 48": (gguf_bytes([("general.alignment", "u32", 48)]), "G306", "general.alignment", "is 48 (u32)"),
    "alignment u64": (gguf_bytes([("general.alignment", "u64", 32)]), "G306", "general.alignment", "is 32 (u64)"),
    "alignment array": (gguf_bytes([("general.alignment", "arr[u32]", [32])]), "G306", "general.alignment",
                        "(arr[u32])"),
    "name of 64 bytes": (gguf_bytes([], [tensor("n" * 64)]), "G307", "byte 24", "has 64 bytes, 1 to 63 are allowed"),
    "no name": (gguf_bytes([], [tensor("")]), "G307", "byte 24", "has 0 bytes, 1 to 63 are allowed"),
    "name with newline": (gguf_bytes([], [tensor("a\nb")]), "G307", "byte 24", r"'a\nb'"),
    "5 dimensions": (gguf_bytes([], [tensor(dims=(1, 1, 1, 2, 3))]), "G307", "byte 24",
                     "w has 5 dimensions, 4 at most"),
    "rank 2^31": (gguf_bytes([], [tensor(rank=2**31)]), "G307", "byte 24", "2147483648 dimensions"),
    "dimension 0": (gguf_bytes([], [tensor(dims=(2, 0))]), "G307", "byte 24", "has the dimensions [2, 0]"),
    "dimension -1": (gguf_bytes([], [tensor(dims=(-1, -6))]), "G307", "byte 24", "has the dimensions [-1, -6]"),
    "product overflow": (gguf_bytes([], [tensor(dims=(2**32, 2**31))]), "G307", "byte 24", "has the dimensions"),
    "tensor twice": (gguf_bytes([], [tensor(), tensor()]), "G307", "byte 65", "the tensor w is there twice"),
    "row not whole": (gguf_bytes([], [tensor(dims=(48,), kind=Q4_0, data=bytes(36))]), "G308", "byte 24",
                      "the rows of w have 48 values and a block of Q4_0 has 32"),
    "misaligned": (gguf_bytes([], [tensor(offset=4)]), "G310", "byte 24", "is at 4, not a multiple of 32"),
    "overlap": (gguf_bytes([], [tensor("a", dims=(6, 2), data=bytes(48)), tensor("b", offset=32)]), "G310", "byte 160",
                "the tensors a and b share bytes"),
    "same place": (gguf_bytes([], [tensor("a"), tensor("b", offset=0)]), "G310", "byte 128", "share bytes"),
    "offset 2^63": (gguf_bytes([], [tensor()])[:57] + struct.pack("<Q", 2**63) + bytes(100), "G311", "tensor w",
                    f"need {2**63 + 96 + 24} bytes and the file has 165"),
    "one byte short": (gguf_bytes([], [tensor()])[:-1], "G311", "tensor w", "need 120 bytes and the file has 119"),
    "data missing": (gguf_bytes([], [tensor()])[:96], "G311", "tensor w", "need 120 bytes and the file has 96"),
    "cut in the infos": (gguf_bytes([], [tensor()])[:60], "G303", "byte 57",
                         "the offset of w needs 65 bytes and the file has 60"),
    "two files joined": (gguf_bytes([ARCH], [tensor(data=bytes(32))]) * 2, "G314", "byte 160",
                         "several GGUF files joined"),
    "vocabularies joined": (gguf_bytes([ARCH]) * 2, "G314", "byte 69", "several GGUF files joined"),
}
