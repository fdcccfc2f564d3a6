"""How much memory an assignment of nodes to partitions takes, and the error if it is too little.

Counted are the arrays with an entry for each node or partition, the store's index pointers among
them, the symmetric lists in memory, and all buffers; not the interpreter and its libraries.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.array_pool import private_map
from gnndrive.common.errors import ConfigError
from gnndrive.common.io.direct_writer import WRITER_BYTES
from gnndrive.common.memory import format_size, least_text
from gnndrive.store.partitioned.edge_stream import BUFFER_BYTES
from gnndrive.store.reader import Store

BYTES_A_PART = 32  # native/ldg.c: a size, two places of the tournament, a count, a number
FIXED_BYTES = 2 * BUFFER_BYTES + WRITER_BYTES + (4 << 20)


def pointer_bytes(store: Store) -> int:
    """Bytes of the store's index pointers in memory."""
    return (store.num_nodes + 1) * (4 if store.num_edges < 1 << 32 else 8)


def require(memory: int, least: int, what: str) -> None:
    """Check that the memory suffices.

    Args:
        memory: bytes that may be used.
        least: bytes that are needed.
        what: what needs them, for the error.

    Raises:
        ConfigError: it does not.
    """
    if memory < least:
        raise ConfigError(
            f"memory={format_size(memory)} is too little {what}: give at least {least_text(least)}"
        )


def zeros(count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """An array of zeros in huge pages, because it is looked up at random; freed with its views."""
    width = np.dtype(dtype).itemsize
    return np.frombuffer(private_map(max(count, 1) * width, huge=True), dtype)[:count]
