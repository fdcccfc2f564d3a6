"""Runs METIS in a process of its own, because METIS may abort its process and tells no progress.

`metis.py` starts this file as a script: metis_child.py LISTS INDEX_BYTES NODES PARTS SEED OUT
PARENT. It imports nothing of gnndrive, so that it starts at once and its memory is METIS's. It dies
with its parent.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Any

import numpy as np

PR_SET_PDEATHSIG = 1


def graph(path: str, index_bytes: int, nodes: int) -> tuple[Any, Any]:
    """The symmetric lists (symmetric.py) as METIS takes them: (xadj, adjncy)."""
    numbers = np.fromfile(path, f"int{8 * index_bytes}")
    view, at = numbers.data, 0
    pointers = np.zeros(nodes + 1, numbers.dtype)
    for node in range(nodes):
        length = view[at]
        pointers[node + 1] = pointers[node] + length
        at += 1 + length
    lengths = pointers[:-1] + np.arange(nodes, dtype=numbers.dtype)
    return pointers, np.delete(numbers, lengths)


def main(arguments: list[str]) -> None:
    """Partition the graph and write the partition of each node, int32 [nodes], to OUT."""
    path, index_bytes, nodes, parts, seed, out, parent = arguments
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        return
    import pymetis

    pointers, neighbours = graph(path, int(index_bytes), int(nodes))
    options = pymetis.Options(seed=int(seed))
    _, part = pymetis.part_graph(int(parts), xadj=pointers, adjncy=neighbours, options=options)
    with open(out, "wb") as file:
        np.asarray(part, np.int32).tofile(file)


if __name__ == "__main__":
    main(sys.argv[1:])
