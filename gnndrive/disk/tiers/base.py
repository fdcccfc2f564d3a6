"""The Tier interface: brings the rows that the feature buffer misses.

The feature buffer calls `fetch` for each admission (`buffer/fetch_queue.py`). A strategy names its
tiers, each of which may pass rows on to the one below it; the disk (`disk.py`) is the lowest. The
highest may take offers: then it hears which rows leave the buffer, before anything is written where
they were (LSM-GNN's victim buffer).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import ReadError
from gnndrive.common.records import Evicted, Int32Array, Int64Array, Landing, Stretch
from gnndrive.disk.engines.base import Engine
from gnndrive.disk.layouts.base import Layout


class Fetch(Protocol):
    """A fetch of rows that was started; iterating over it waits for rows. A `ReadJob` is one.

    A row that cannot be brought is a failure of a stretch: what the iterator raises breaks the
    whole feature buffer.
    """

    def __aiter__(self) -> AsyncIterator[Stretch]:
        """Yield stretches of finished rows, until each row has landed or failed."""
        ...

    def cancel(self) -> None:
        """Make reads that were not started fail with ECANCELED."""
        ...


class EvictedRows(Protocol):
    """Host memory for rows beside a device's slots, into which it copies rows out of these;
    `SlotMemory.evicted` makes it. Other rows may be read into it.

    Attributes:
        rows: uint8 [places, row_bytes].
        rows_max: the most rows whose copies may be under way at once; None: any number.
        read_in_place: whether the device reads `rows` itself (`Stretch.pinned`), so that none need
            be copied to a landing.
    """

    rows: npt.NDArray[np.uint8]
    rows_max: int | None
    read_in_place: bool

    def copy_out(self, slots: Int32Array, places: Int32Array) -> Callable[[], Awaitable[None]]:
        """Begin to copy the row in slot `slots[i]` to `rows[places[i]]`, before any row that is
        committed later gets into that slot.

        Args:
            slots: slots whose rows are valid, int32 [n].
            places: different places that no other copy uses, int32 [n].

        Returns:
            A function that waits for the copies' end. The wait may be cancelled and begun again.

        Raises:
            MemoryError: there is no memory for the copy, and none was begun.
        """
        ...

    def wait(self) -> None:
        """Block this thread until the device can read all of `rows`, which it can once they are
        pinned.

        Raises:
            ConfigError: they cannot be pinned.
        """
        ...

    def close(self) -> None:
        """Free the memory, after all copies; before the slots' memory is closed."""
        ...


@dataclass(frozen=True, slots=True)
class TierContext:
    """What `Tier.make` gets; a tier uses the attributes that it needs.

    Attributes:
        layout: plans reads of the table's rows; its owner closes it.
        engine: carries out reads; its owner closes it.
        below: the next tier of the strategy's chain; None: this is the lowest.
        rows: the number of rows of the table.
        row_bytes: bytes of one row.
        kept: the rows that a tier of host memory keeps: from the first to the second number. A tier
            that chooses itself keeps as many.
        evicted: where a tier keeps rows that leave the slots, or the rows `kept`; the tier closes
            it. None: nowhere beside the slots, which are in host memory, or not yet.
        table: the name of the table.
        classes: the class of each row, uint8 [rows], by which rows leave the slots; None: by other
            things alone.
        opened: what the strategy has opened for its tiers, such as a connection; see
            `Scheme.tier_context`.
    """

    layout: Layout
    engine: Engine
    below: Tier | None = None
    rows: int = 0
    row_bytes: int = 0
    kept: tuple[int, int] = (0, 0)
    evicted: EvictedRows | None = None
    table: str = ""
    classes: npt.NDArray[np.uint8] | None = None
    opened: Any = None


class Tier(ABC):
    """A level of storage from which rows are fetched.

    Attributes:
        path: the file that holds the rows, for errors.
        takes_offers: whether `offer` does anything; if not, the feature buffer does not find out
            which rows leave it. Only the highest tier of a chain gets offers.
        ranked: slot tables of the C core, whose rows have standby keys by the feature buffer's
            policy: these keys are set again whenever those of the feature buffer are.
        rows_served: rows that were fetched from what left the feature buffer, so far.
        bytes_read: that the tier has read without the engine, so far.
    """

    name: str
    path: str
    takes_offers = False
    ranked: tuple[Any, ...] = ()
    rows_served = 0
    bytes_read = 0

    @classmethod
    @abstractmethod
    def make(cls, context: TierContext) -> Self:
        """Make the tier for one table."""

    @abstractmethod
    def fetch(self, rows: Int64Array, places: Int32Array, landing: Landing) -> Fetch:
        """Start to bring `rows` to `places`, before the call returns.

        Args:
            rows: row numbers, each once, int64 [n].
            places: the place of each row in the landing, int32 [n].
            landing: the memory in which the places are.

        Raises:
            ValueError: a row is out of range or requested twice.
            ClosedError: the engine was closed.
        """

    def row_error(self, offset: int, errno: int) -> Exception:
        """The error of a batch that needs a row which could not be brought.

        Args:
            offset, errno: what the failure says, see `FAILURE`; a tier chooses those of its own.
        """
        return ReadError(self.path, offset, errno)

    def offer(self, evicted: Evicted) -> None:  # noqa: B027  # most tiers keep nothing
        """Rows have left the feature buffer. Called in the step of the admission, before the fetch
        of the rows that come in their place; the tier may begin to copy them, and does not wait."""

    async def aclose(self) -> None:  # noqa: B027  # most tiers hold nothing
        """Free what this tier and those below it hold, after their fetches have ended and before
        the engine and the layout are closed; idempotent."""
