"""Memory that was freed returns to the system."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gnndrive.common import malloc
from gnndrive.common.malloc import return_free_memory, return_large_blocks

BLOCK_BYTES, BLOCKS = 1 << 16, 1024  # smaller than what glibc maps one by one


def resident_bytes() -> int:
    """The process's memory without mapped files."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def test_blocks_below_one_that_is_in_use_are_returned():
    blocks = [np.ones(BLOCK_BYTES, np.uint8) for _ in range(BLOCKS)]
    last = blocks[-1]
    blocks.clear()
    before = resident_bytes()
    return_free_memory()
    assert before - resident_bytes() > BLOCK_BYTES * BLOCKS // 2
    assert last.all()


def test_without_glibc_nothing_happens(monkeypatch):
    monkeypatch.setattr(malloc.ctypes, "CDLL", lambda name: object())
    return_free_memory()
    return_large_blocks()
