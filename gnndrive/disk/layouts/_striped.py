"""`StripedFile`: a table whose rows have copies on several disks."""

from __future__ import annotations

import numpy as np

from gnndrive.common.records import Int32Array, Int64Array, Landing
from gnndrive.disk.layouts._rows_file import RowsFile
from gnndrive.disk.layouts.base import LayoutContext
from gnndrive.disk.read_job import ReadJob
from gnndrive.store.striped.format import StripedRows


class StripedFile:
    """The copies of a table's rows, a file on each disk; `context` is that of the layout."""

    def __init__(self, context: LayoutContext, rows: StripedRows) -> None:
        self._rows = rows
        self._files: list[RowsFile] = []
        for file in rows.files:  # if one cannot be opened, those before are closed when freed
            self._files.append(RowsFile(file, context.extent_bytes_max, context.gap_bytes_max))

    def path(self, number: int) -> str:
        """The path of a file, for errors."""
        return self._files[number].path

    def locate(
        self, rows: Int64Array, places: Int32Array, landing: Landing
    ) -> list[tuple[int, Int32Array, ReadJob]]:
        """Plan the reads that bring `rows` to `places`, as `Layout.locate` does: of each file that
        has some of them, its number, their places, and the job."""
        disks, own = self._rows.split(rows)
        found = []
        for number, file in enumerate(self._files):
            here = np.flatnonzero(disks == number)
            if len(here):
                job = file.locate(own[here], places[here], landing)
                found.append((number, places[here], job))
        return found

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()
