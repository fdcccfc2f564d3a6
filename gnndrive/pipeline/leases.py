"""What the stages call of a feature buffer, this process's own or the host service's, and of a
batch's lease in it. Tickets are the buffer's own affair: the stages only pass them back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from gnndrive.common.records import Int64Array


class BatchLease(Protocol):
    """Holds the slots of one batch's rows until `release`; see `buffer.lease.Lease`."""

    async def ready(self) -> None:
        """Wait until every row is valid; raises the error of a row that could not be read."""

    def gather(self, table: str, dtype: torch.dtype, row_shape: tuple[int, ...]) -> torch.Tensor:
        """Copy the table's rows into a new tensor [n, *row_shape]; blocks, in a worker thread."""

    async def gathered(self) -> None:
        """Wait until the copies of `gather` have ended; only then call `release` (rule 9)."""

    def release(self) -> None:
        """Give the slots back, once."""


class BatchBuffer(Protocol):
    """Admits batches and fetches their rows; see `buffer.feature_buffer.FeatureBuffer`.

    Attributes:
        missing_share: the share of the last admitted sweep's rows that had to be read, 0 to 1.
        valid_when_granted: whether a lease is given only when its rows are valid.
    """

    missing_share: float
    valid_when_granted: bool

    def row_bytes(self, table: str) -> int:
        """Bytes of a row of a table."""

    def announce(self, index: int, rows: Mapping[str, Int64Array]) -> None:
        """Announce that batch `index` will need `rows`."""

    def withdraw(self, index: int, rows: Mapping[str, Int64Array]) -> None:
        """Take back the announcement of a batch that will not join."""

    def fits_together(self, batches: Sequence[tuple[int, Mapping[str, Int64Array]]]) -> bool:
        """Whether these batches can be extracted together, in one sweep."""

    def join(self, batches: Sequence[tuple[int, Mapping[str, Int64Array]]]) -> Sequence[Any]:
        """Join the admission queue with the batches of a sweep; a ticket for each."""

    async def granted(self, ticket: Any) -> BatchLease:
        """Wait for the batch's lease; cancelling this gives up the batch (rule 10)."""

    def leave(self, ticket: Any) -> None:
        """Give up a place in the admission queue, or the lease that it has got."""

    @property
    def loading(self) -> bool:
        """Whether reads are under way."""

    def fail(self, error: BaseException) -> None:
        """Break the buffer: every waiting batch gets the error, and every later one."""

    async def drain(self) -> None:
        """Wait until no read is under way."""


class NoBuffer:
    """Stands for the feature buffer while batches are sampled apart, so that none is extracted, and
    behind an epoch that has ended; `run_epoch` drains it."""

    async def drain(self) -> None:
        """See `BatchBuffer.drain`."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name}: no batch is extracted while batches are sampled apart")
