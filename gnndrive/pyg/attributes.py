"""What a batch has beside the rows of the feature buffer: other attributes, and edges' numbers.

They are memory-mapped where memory has room for their files, for then each page is read but once.
Where it has not, a batch's rows lie all over a file that the page cache cannot keep, and each comes
with a stretch of what nobody wants: minutes a batch. There they are read as a hop's neighbours are,
in planned direct reads at the ring's full depth, and nothing is kept.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from gnndrive.common.array_pool import Allocate, empty_tensor
from gnndrive.common.errors import ClosedError, ReadError
from gnndrive.common.records import Int64Array, Landing, TableFile
from gnndrive.disk.layouts.base import Layout
from gnndrive.disk.read_job import ReadJob
from gnndrive.store.format import torch_dtype

if TYPE_CHECKING:
    from gnndrive.store.reader import Store


PASS_ROWS = 1 << 19  # read at once: samples that wait for neighbours have their turn in between


class Attributes:
    """Rows of a store's arrays, for one loader.

    Args:
        store: whose.
        layouts: of the arrays that are not mapped, by name; whoever made them closes them.
        read: carries reads out and returns the failures; blocking, from a worker thread.
    """

    def __init__(
        self,
        store: Store,
        layouts: Mapping[str, Layout] | None = None,
        read: Callable[[ReadJob], npt.NDArray[np.void]] | None = None,
    ) -> None:
        self._store, self._layouts, self._read = store, dict(layouts or {}), read
        self._maps: dict[str, torch.Tensor] = {}

    def pick(self, name: str, rows: Int64Array, empty: Allocate = np.empty) -> torch.Tensor:
        """Rows of an array, [n, *row] in its own dtype and in memory from `empty`; blocking.

        Args:
            name: in full, "nodes/year".
            rows: their numbers, int64 [n], any order, duplicates allowed.
            empty: where the memory comes from.

        Raises:
            ReadError: the disk failed.
            ClosedError: the loader was closed meanwhile.
        """
        file = self._store.table(name)
        out = empty_tensor(empty, (len(rows), *file.row_shape), torch_dtype(file.dtype))
        layout = self._layouts.get(name)
        if layout is None or not len(rows):
            return torch.index_select(self._map(name), 0, torch.from_numpy(rows), out=out)
        for at in range(0, len(rows), PASS_ROWS):
            self._fetch(layout, rows[at : at + PASS_ROWS], out[at : at + PASS_ROWS], file)
        return out

    def _fetch(self, layout: Layout, rows: Int64Array, into: torch.Tensor, file: TableFile) -> None:
        assert self._read is not None
        landing = Landing(into.data_ptr(), file.row_bytes, False, into)
        failures = self._read(layout.locate(rows, np.arange(len(rows), dtype=np.int32), landing))
        if len(failures):
            first = failures[np.argmin(failures["offset"])]
            if first["error"] == errno.ECANCELED:
                raise ClosedError("the loader was closed while this batch was being read")
            raise ReadError(file.path, int(first["offset"]), int(first["error"]))

    def _map(self, name: str) -> torch.Tensor:
        """The array as a mapped tensor, mapped once."""
        if name not in self._maps:
            self._maps[name] = self._store.tensor(name)
        return self._maps[name]

    def close(self) -> None:
        """Let go of memory maps; they come back when they are wanted."""
        self._maps.clear()

    def __reduce__(self) -> Any:
        return (Attributes, (self._store,))
