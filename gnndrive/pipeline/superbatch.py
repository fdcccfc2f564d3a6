"""`Superbatch`, and what the stages ask of the loader to make one; see `superbatches.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from gnndrive.common.errors import ConfigError
from gnndrive.common.records import Codes
from gnndrive.sampling.trace import Trace


@dataclass(eq=False)
class Superbatch:
    """A superbatch that is being sampled, or was.

    Attributes:
        trace: its samples.
        first: the index of its first batch.
        left: how many more batches are to be drawn for it.
        end: behind its last batch.
        written: how many samples are in the file.
        error: of batch `end`, which ends the epoch; None: there is none.
        last: whether there are no batches behind it.
    """

    trace: Trace | None
    first: int
    left: int
    end: int
    written: int = 0
    error: Exception | None = None
    last: bool = False

    def fail(self, index: int, error: Exception) -> None:
        """Batch `index` failed. The epoch ends with it, so batches behind it do not matter."""
        self.left, self.last = 0, True
        if self.error is None or index < self.end:
            self.error, self.end = error, index


class SuperbatchSource(Protocol):
    """How superbatches are made; `loader/superbatches.py` has it.

    Attributes:
        end: the index behind the epoch's last batch; None: only the schedule knows it.
        recorded: the superbatch that was sampled apart and is replayed next; None: there is none.
    """

    end: int | None
    recorded: Superbatch | None

    def size(self, number: int, misses: float | None) -> int:
        """How many batches superbatch `number` of this epoch has; a batch misses about `misses`
        rows in the feature buffer, or it is not known yet."""
        ...

    def open_trace(self) -> Trace:
        """A new trace; blocks.

        Raises:
            StoreError: no file can be made.
        """
        ...

    def next_uses(self) -> Mapping[str, Codes]:
        """Table name → the code of the next use of each row, uint16 [rows]. All names have the same
        array, because the rows of each are nodes; it is made at the first call."""
        ...

    def no_room(self) -> ConfigError:
        """The error for a disk that has room for no record."""
        ...

    def discard(self) -> None:
        """Free the superbatch that is kept, because it will not be replayed; idempotent."""
        ...

    def keep(self, superbatch: Superbatch) -> None:
        """Make `superbatch`, which was sampled apart, the one that is replayed next."""
        ...

    def load_graph(self) -> None:
        """Have the adjacency in memory, before a superbatch is sampled apart; blocks."""
        ...

    def free_graph(self) -> None:
        """Free it again."""
        ...
