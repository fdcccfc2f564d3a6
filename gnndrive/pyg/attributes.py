"""Read the parts of a batch that the feature buffer does not hold: other attributes, edge numbers.

Arrays are memory-mapped if memory has room for their files, because then each page is read only
once. If it has no room, the page cache cannot keep the file, and a page fault reads a whole stretch
of it for each row: minutes a batch. Then rows are read like the neighbours of a hop, in planned
direct reads at the ring's full depth, and nothing is kept.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from functools import cache
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
from gnndrive.store.mapped_rows import pick_rows

if TYPE_CHECKING:
    from gnndrive.store.reader import Store


PASS_ROWS = 1 << 19  # rows read at once; sampling can read neighbours between two such reads


class Attributes:
    """Rows of a store's arrays, for one loader.

    Args:
        layouts: layouts of the arrays that are not mapped, by name; the caller closes them.
        read: carries out reads and returns the failures; it blocks, and is called in a worker
            thread. None: there are no layouts.
    """

    def __init__(
        self,
        store: Store,
        layouts: Mapping[str, Layout] | None = None,
        read: Callable[[ReadJob], npt.NDArray[np.void]] | None = None,
    ) -> None:
        self._store, self._layouts, self._read = store, dict(layouts or {}), read
        self._maps: dict[str, torch.Tensor] = {}
        self._file = cache(store.table)

    def pick(self, name: str, rows: Int64Array, empty: Allocate = np.empty) -> torch.Tensor:
        """Read rows of an array, by its full name, such as "nodes/year": [n, *row], in the array's
        dtype; blocks. `rows` come in any order, and may come several times.

        Raises:
            ReadError: the disk failed.
            StoreError: there is no such row, or the store was overwritten since it was opened.
            ClosedError: the loader was closed during the read.
        """
        file = self._file(name)
        out = empty_tensor(empty, (len(rows), *file.row_shape), torch_dtype(file.dtype))
        layout = self._layouts.get(name)
        if layout is None or not len(rows):
            return pick_rows(file, self._map(name), rows, out)
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
        if name not in self._maps:
            self._maps[name] = self._store.tensor(name)
        return self._maps[name]

    def close(self) -> None:
        """Drop the memory maps; `pick` maps the files again."""
        self._maps.clear()

    def __reduce__(self) -> Any:
        return (Attributes, (self._store,))
