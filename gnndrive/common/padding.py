"""Pad the rows of batches with copies of their last rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from gnndrive.common.array_pool import Allocate

Part: TypeAlias = tuple[int, int]
"""How many rows a batch has, and how many with its padding."""
Parts: TypeAlias = Sequence[Part]
"""The same for each batch of a group; (): the batches are not padded."""
_Numbers = TypeVar("_Numbers", bound=npt.NDArray[Any])


def padded(numbers: _Numbers, parts: Parts, empty: Allocate = np.empty) -> _Numbers:
    """The numbers of batches that lie behind each other, [n], with the last one of each batch again
    as often as it is padded; `empty` allocates them."""
    if all(rows == size for rows, size in parts):
        return numbers
    out: Any = empty(sum(size for _, size in parts), numbers.dtype)
    begin = into = 0
    for rows, size in parts:
        out[into : into + rows] = numbers[begin : begin + rows]
        begin += rows
        if size > rows:
            out[into + rows : into + size] = numbers[begin - 1]
        into += size
    return out  # type: ignore[no-any-return]
