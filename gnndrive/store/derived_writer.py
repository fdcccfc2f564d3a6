"""`DerivedWriter`: a StoreWriter that takes arrays over from another store as they are.

The new store has hard links to their files, so they take no room, and removing or overwriting
either store leaves the other whole. Where links are not possible, they are copied. When not to use
it: for arrays that differ from the other store's in any way.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

from gnndrive.store.array_writer import ArrayWriter
from gnndrive.store.format import ArrayInfo
from gnndrive.store.mapped_arrays import MappedArrays
from gnndrive.store.writer import StoreWriter


class DerivedWriter(StoreWriter):
    """See the module."""

    def __enter__(self) -> DerivedWriter:
        super().__enter__()
        return self

    @property
    def folder(self) -> Path:
        """The folder that becomes the store; what else is put into it goes along."""
        return self._assert_open()

    def take(self, store: MappedArrays, name: str) -> None:
        """Take over an array, with its checksum.

        Args:
            store: the store that has it.
            name: its full name in both stores.

        Raises:
            ConfigError: the store that is written cannot have an array of this name.
            StoreError: the file cannot be linked or copied, or the store was overwritten since it
                was opened.
        """
        folder = self._assert_open()
        place = self.types.place(name)
        source = store.info.arrays[name]
        info = replace(source, folder="")
        file = folder / info.file
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            _link_or_copy(store.path / source.file, file)
        except OSError as error:
            store.check_unchanged()
            raise self._failure(error, str(self.path / info.file)) from error
        store.check_unchanged()  # the file at that path may be another store's
        taken = _TakenArray(info)
        if (place.group, place.leaf) == ("nodes", "y"):
            type = next(key for key in self.types.nodes if _is_of(name, key))
            nodes = store.info.types.nodes[type]
            taken.num_classes = nodes.num_classes
            if nodes.classes is not None:
                self.classes(nodes.classes, type)
        self._writers[name] = taken


class _TakenArray(ArrayWriter):
    """An array that is written already."""

    def __init__(self, info: ArrayInfo) -> None:
        self.info = self.finished = info
        self.rows_written, self.num_classes, self.gaps = info.shape[0], 0, None
        self.finite_rows = None
        self._closed, self._fd = True, -1


def _is_of(name: str, type: str | None) -> bool:
    return name == "nodes/y" if type is None else name == f"nodes/{type}/y"


def _link_or_copy(source: Path, file: Path) -> None:
    """Give a file a second name, or copy it durably.

    Raises:
        OSError: the operating system's.
    """
    try:
        os.link(source, file)
    except OSError:  # another file system, one without links, or another user's file
        shutil.copyfile(source, file)
        with file.open("rb") as copy:
            os.fsync(copy.fileno())
