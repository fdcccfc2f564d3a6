"""`BatchKey`: the key of a batch, which all of its random draws depend on; `batch_key` makes it."""

from __future__ import annotations

from typing import Self

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


class BatchKey(int):
    """64 bits that identify (seed, epoch, batch), as a number, and what they were made from.

    Attributes:
        epoch: 64 bits that identify (seed, epoch).
        batch: the batch's number in its epoch.
    """

    epoch: int
    batch: int

    def __new__(cls, epoch: int, batch: int) -> Self:
        """Make the key of a batch."""
        self = super().__new__(cls, _mixed(epoch, batch))
        self.epoch, self.batch = epoch, batch
        return self

    def __getnewargs__(self) -> tuple[int, int]:  # type: ignore[override]
        """What copies and pickles are made from."""
        return self.epoch, self.batch


def batch_key(seed: int, epoch: int, batch: int) -> BatchKey:
    """Return the key of a batch, for `Sampler.sample`.

    Each number is added to the state, which SplitMix64's finalizer then mixes. The finalizer is
    bijective, so no two batches of one seed and epoch share a key; a change of one number changes
    about half of the key's bits.
    """
    return BatchKey(_mixed(_mixed(0, seed), epoch), batch)


def _mixed(state: int, part: int) -> int:
    state = (state + part + _GOLDEN) & _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)
