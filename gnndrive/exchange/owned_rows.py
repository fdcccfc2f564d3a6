"""`OwnedRows`: the tier that brings the rows of a table that one rank owns."""

from __future__ import annotations

from gnndrive.common.owners import Owners
from gnndrive.common.records import Int32Array, Int64Array, Landing
from gnndrive.disk.tiers.base import Fetch, Tier, TierContext


class OwnedRows(Tier):
    """The rows of one owner, by its own numbers. `below` has all rows, or those of one of the
    `parts` that a store was divided into, all of the owner's among them."""

    def __init__(
        self, below: Tier, owners: Owners, owner: int, parts: Owners | None = None
    ) -> None:
        self.path, self._below = below.path, below
        self._owners, self._owner, self._parts = owners, owner, parts

    @classmethod
    def make(cls, context: TierContext) -> OwnedRows:
        """Not used: it is no plug-in, because a strategy does not name it."""
        raise NotImplementedError

    def fetch(self, rows: Int64Array, places: Int32Array, landing: Landing) -> Fetch:
        """See `Tier.fetch`."""
        rows = self._owners.rows_of(self._owner, rows)
        if self._parts is not None:
            rows = self._parts.numbers(rows)
        return self._below.fetch(rows, places, landing)

    def row_error(self, offset: int, errno: int) -> Exception:
        """See `Tier.row_error`."""
        return self._below.row_error(offset, errno)

    async def aclose(self) -> None:
        """See `Tier.aclose`."""
        await self._below.aclose()
