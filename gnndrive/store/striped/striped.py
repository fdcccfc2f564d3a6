"""`stripes_of`: the stripes of a store, checked, for loaders."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gnndrive.common.errors import StoreError
from gnndrive.store.files import open_plain, read_at_most
from gnndrive.store.format import DATA_OFFSET, npy_header
from gnndrive.store.reader import Store
from gnndrive.store.striped.format import (
    STRIPES,
    Mark,
    StripedRows,
    own_arrays,
    striped_path,
    striped_rows,
)


@dataclass(frozen=True, slots=True)
class Stripes:
    """Where loaders read the rows of a store: the folder on each disk, and the rows of each table
    by its name."""

    folders: tuple[Path, ...]
    tables: Mapping[str, StripedRows]

    @property
    def said(self) -> str:
        """What a plan says of them."""
        return (
            f"rows are read from stripes on {', '.join(str(each.parent) for each in self.folders)}"
        )

    @property
    def disks(self) -> int:
        """How many different disks these are."""
        return len(set(map(disk_of, self.folders)))


def disk_of(file: Path | int) -> int:
    """The number of the disk that a file, or an open one, is on."""
    return os.stat(file).st_dev


def stripes_of(store: Store) -> Stripes | None:
    """The stripes of a store; None: it has none.

    Raises:
        StoreError: they are damaged or of another store, or a disk is not there.
    """
    path = striped_path(store)
    if not os.path.lexists(path):
        return None
    mend = (
        f"mount its disk, or run `gnndrive stripe {shlex.quote(str(store.path))} --remove`, and "
        "loaders read the store's own rows"
    )
    info = STRIPES.read(path, store)
    for disk, folder in enumerate(info.folders):
        mark = Mark.read(folder, mend)
        if (mark.store, mark.disk, mark.disks) != (info.store, disk, len(info.folders)):
            raise StoreError(f"{folder} has other stripes than {store.path} names: {mend}")
        for array in own_arrays(info.arrays, disk).values():
            fd = open_plain(folder, array.file, mend)
            try:
                whole = os.fstat(fd).st_size == array.nbytes
                if not whole or read_at_most(fd, DATA_OFFSET) != npy_header(array):
                    raise StoreError(f"{folder / array.file} is damaged: {mend}")
            finally:
                os.close(fd)
    return Stripes(tuple(info.folders), striped_rows(info.arrays, info.folders))
