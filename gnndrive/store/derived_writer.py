"""`DerivedWriter`: writes a store of whose arrays another store has some already."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

from gnndrive.store.format import ArrayInfo
from gnndrive.store.reader import Store
from gnndrive.store.types import array_name
from gnndrive.store.writer import ArrayWriter, StoreWriter


class DerivedWriter(StoreWriter):
    """A StoreWriter that takes arrays over from another store as they are: by hard links to their
    files, so they take no room, and removing or overwriting either store leaves the other whole.
    Where links are not possible, they are copied."""

    def take(self, store: Store, name: str) -> None:
        """Take over an array, by its full name, with its checksum; StoreError: that failed, or the
        store was overwritten since it was opened."""
        source = store.info.arrays[name]
        info = replace(source, folder="")
        file = self.folder / info.file
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            _link_or_copy(store.path / source.file, file)
        except OSError as error:
            store.check_unchanged()
            raise self._failure(error, str(self.path / info.file)) from error
        store.check_unchanged()  # the file at that path may be another store's
        taken = _TakenArray(info)
        for type, nodes in store.info.types.nodes.items():
            if name == array_name("nodes", type, "y"):
                taken.num_classes = nodes.num_classes
                if nodes.classes is not None:
                    self.classes(nodes.classes, type)
        self._writers[name] = taken


class _TakenArray(ArrayWriter):
    """An array that is written already."""

    def __init__(self, info: ArrayInfo) -> None:
        self.info = self.finished = info
        self.rows_written, self.num_classes, self.gaps = info.shape[0], 0, None
        self.finite_rows, self._closed = None, True

    def close(self) -> None:
        """See `ArrayWriter.close`; there is no open file."""


def _link_or_copy(source: Path, file: Path) -> None:
    """Give a file a second name, or copy it durably."""
    try:
        os.link(source, file)
    except OSError:  # another file system, one without links, or another user's file
        shutil.copyfile(source, file)
        with file.open("rb") as copy:
            os.fsync(copy.fileno())
