"""`OpenedFolder`: tells whether a folder still holds the store or the pack that was opened.

A store, like a pack, is replaced by putting another folder in its place. Its files are opened by
their paths, at different times, so each time its record (store.json, pack.json) is compared with
the one that was read first: by the file's status, and only if that differs by its content.

When not to use it: for files that stay open; they remain those of the folder that was opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Protocol

from gnndrive.common.errors import StoreError
from gnndrive.common.records import TableFile
from gnndrive.store.files import FileStatus, file_status


class Source(Protocol):
    """A folder that a loader reads the rows of tables from, in place of the store's arrays."""

    def file(self, table: str) -> TableFile:
        """The file of the rows of a table, by the table's name."""
        ...

    def unchanged(self) -> AbstractContextManager[None]:
        """Check after the block, which opens files of the folder by their paths, that they are its.

        Raises:
            StoreError: the folder was removed or replaced.
        """
        ...


class OpenedFolder:
    """The folder of an open store or pack.

    Args:
        record: its record, a file that is written anew whenever the folder is.
        is_same: reads the record again, and returns whether it says what it said; may raise
            StoreError.
        changed: the error's message if it does not.
        status: of the record when it was read; None: it was not noted, so the record is read again
            at the first check.
    """

    def __init__(
        self, record: Path, is_same: Callable[[], bool], changed: str,
        status: FileStatus | None = None,
    ) -> None:  # fmt: skip
        self._record, self._is_same, self._changed = record, is_same, changed
        self._status = status

    def check_unchanged(self) -> None:
        """Check that the folder holds what was opened, or a copy of it.

        A file of the folder that was opened before this check is of what was opened.

        Raises:
            StoreError: the folder was replaced or removed.
        """
        status: FileStatus = ()
        with suppress(OSError, StoreError):
            status = file_status(self._record)
            if status != self._status and self._is_same():
                self._status = status
        if status != self._status:
            raise StoreError(self._changed)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Check after the block, which opens files of the folder by their paths, whose they are.

        Raises:
            StoreError: the folder was replaced or removed.
        """
        try:
            yield
        except StoreError:
            self.check_unchanged()
            raise
        self.check_unchanged()
