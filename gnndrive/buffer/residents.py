"""`Residents`: fetches the rows that never leave a feature buffer, part after part.

`FeatureBuffer` begins it when an epoch gets the buffer, and goes on with it whenever rows have
settled. The first batches wait for the residents; later epochs find them there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gnndrive.buffer.row_table import RowHold, RowTable
from gnndrive.common.errors import ClosedError


class Residents:
    """The residents of all tables of a feature buffer; their lease never ends.

    Args:
        tables: the tables, of which some may have none.
        fetch: begins to fetch what a hold has to load.
        broken: called with an error after which some slots load for ever.
    """

    def __init__(
        self, tables: Iterable[RowTable], fetch: Callable[[RowHold], None],
        broken: Callable[[BaseException], None],
    ) -> None:  # fmt: skip
        self._tables, self._fetch, self._broken = tuple(tables), fetch, broken

    def close(self) -> None:
        """Refer to the tables and the feature buffer no more."""
        self._tables, self._fetch, self._broken = (), lambda hold: None, lambda error: None

    def begin(self) -> None:
        """Fetch the residents that are not valid yet."""
        for table in self._tables:
            table.begin_residents()
        self.go_on()

    def go_on(self) -> None:
        """Begin to fetch the next parts, if earlier ones have ended."""
        for table in self._tables:
            while (hold := table.next_residents()) is not None:
                try:
                    self._fetch(hold)
                except Exception as error:
                    hold.fail_unfetched()
                    if not isinstance(error, (ClosedError, MemoryError)):
                        self._broken(error)
