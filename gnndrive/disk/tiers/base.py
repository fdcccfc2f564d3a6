"""The Tier interface: where the feature buffer's missing rows come from. The disk is the first."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol, Self

from gnndrive.common.records import Int32Array, Int64Array, Landing, Stretch
from gnndrive.disk.engines.base import Engine
from gnndrive.disk.layouts.base import Layout


class Fetch(Protocol):
    """Rows on their way; iterating only listens. A `ReadJob` is one."""

    def __aiter__(self) -> AsyncIterator[Stretch]:
        """The finished stretches, until each row landed or failed."""
        ...

    def cancel(self) -> None:
        """Let what was not started fail with ECANCELED."""
        ...


@dataclass(frozen=True, slots=True)
class TierContext:
    """What a tier is made from; each takes what it needs.

    Attributes:
        layout: where the table's rows lie on disk; closed by its owner.
        engine: carries reads out; closed by its owner.
        below: the next tier of the strategy's chain; None: this is the lowest.
        rows: rows of the table.
        row_bytes: bytes of one row.
    """

    layout: Layout
    engine: Engine
    below: Tier | None = None
    rows: int = 0
    row_bytes: int = 0


class Tier(ABC):
    """A level that rows are fetched from.

    Attributes:
        path: the file that holds the rows, for errors.
    """

    name: str
    path: str

    @classmethod
    @abstractmethod
    def make(cls, context: TierContext) -> Self:
        """A tier of one table."""

    @abstractmethod
    def fetch(self, rows: Int64Array, slots: Int32Array, landing: Landing) -> Fetch:
        """Start bringing `rows` (int64 [n]) into `slots` (int32 [n]), in this call.

        Raises:
            ValueError: a row is out of range or asked for twice.
            ClosedError: what reads was closed.
        """
