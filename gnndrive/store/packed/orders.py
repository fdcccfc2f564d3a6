"""Order the rows of a segment's shared file, so that a batch reads few bytes that it does not want
(DiskGNN §4.3).

A batch wants some rows of the file, and reads whole pages. The more the rows of a page are wanted
by the same batches, the less is read in vain:

- "sets" puts rows together that exactly the same batches use. Two neighbouring sets in Gray's order
  differ in one batch, so that a batch's stretches are long. For segments of at most 64 batches; the
  best order as long as a set has a page's rows or more.
- "minhash" is the paper's: two MinHashes of the set of batches, as the released code sorts by both;
  the paper's text has the smaller of the two, which is worse. For segments of any size.
- "id" is the order of the table, to compare with.

A row is given by its number among the shared rows by id, as `NodePlaces.members` returns it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import ConfigError
from gnndrive.common.records import Int64Array

Members = npt.NDArray[Any]

ORDERS = ("sets", "minhash", "id")
SETS_MAX = 64
"""The most batches of a segment in the order "sets": a set is a mask of 64 bits."""

_GOLDEN, _MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1


def order_rows(order: str, members: Iterable[Members], rows: int, batches: int) -> Int64Array:
    """Return the order of the rows in a segment's shared file; it depends on the sets alone.

    Args:
        order: one of `ORDERS`.
        members: the shared rows that each batch of the segment uses: numbers below `rows`.
        rows: how many shared rows there are.
        batches: how many batches the segment has.

    Returns:
        The row at each position of the file, int64 [rows].

    Raises:
        ConfigError: there is no such order, or the segment is too large for it.
    """
    if order == "id":
        return np.arange(rows)
    if order == "minhash":
        key = _minhashes(members, rows, batches)
    elif order == "sets" and batches <= SETS_MAX:
        key = _gray_rank(_masks(members, rows, batches))
    elif order == "sets":
        raise ConfigError(
            f"the order 'sets' is for segments of at most {SETS_MAX} batches, and this one has "
            f"{batches}: take a smaller segment, or the order 'minhash'"
        )
    else:
        raise ConfigError(f"there is no order {order!r}: take one of {', '.join(ORDERS)}")
    return np.argsort(key, kind="stable")


def _unsigned(bits: int) -> Any:
    """The narrowest type for so many bits: up to 16, sorting takes a pass instead of a merge."""
    return next(np.dtype(f"u{width}") for width in (1, 2, 4, 8) if bits <= 8 * width)


def _masks(members: Iterable[Members], rows: int, batches: int) -> npt.NDArray[Any]:
    """The set of batches that use each row, one bit for each batch."""
    mask = np.zeros(rows, _unsigned(batches))
    for batch, used in enumerate(members):
        mask[used] |= mask.dtype.type(1 << batch)
    return mask


def _gray_rank(mask: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The place of each mask in Gray's order, in which neighbours differ in one bit."""
    shift = 1
    while shift < 8 * mask.dtype.itemsize:
        mask = mask ^ (mask >> mask.dtype.type(shift))
        shift *= 2
    return mask


def _minhashes(members: Iterable[Members], rows: int, batches: int) -> npt.NDArray[Any]:
    """Both MinHashes of each row's set of batches, as one number."""
    bits = max(1, (batches - 1).bit_length())
    first, second = (_ranks(batches, number) for number in (0, 1))
    least = np.full((2, rows), batches - 1, _unsigned(2 * bits))
    for batch, used in enumerate(members):
        least[0, used] = np.minimum(least[0, used], first[batch])
        least[1, used] = np.minimum(least[1, used], second[batch])
    both: npt.NDArray[Any] = (least[0] << least.dtype.type(bits)) | least[1]
    return both


def _ranks(batches: int, number: int) -> list[int]:
    """The place of each batch in a random order of the batches: a hash without collisions."""
    hashes = []
    for batch in range(batches):
        state = (2 * batch + number + 1) * _GOLDEN & _MASK  # SplitMix64
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        hashes.append((state ^ (state >> 31), batch))
    ranks = [0] * batches
    for rank, (_, batch) in enumerate(sorted(hashes)):
        ranks[batch] = rank
    return ranks
