"""`PartitioningFolder`: the hidden folder of an unfinished partitioned folder; a later call of
`gnndrive.partition` with the same settings goes on with it."""

from __future__ import annotations

from pathlib import Path

from gnndrive.store.derived_folder import DerivedFolder, LayoutKind
from gnndrive.store.partitioned.format import (
    ARRAYS,
    MEND,
    PARTITION_JSON,
    PARTITIONED,
    VERSION,
    PartitionInfo,
    dump,
    read_partition,
)
from gnndrive.store.partitioned.settings import PartitionSettings, parse_settings
from gnndrive.store.reader import Store
from gnndrive.store.unfinished_layout import UnfinishedLayout, unfinished_layouts

PARTITIONS = LayoutKind(
    PARTITIONED, PARTITION_JSON, VERSION, ".partitioning", ARRAYS, "partitioning",
    "replace it (--overwrite), or give another name (--name)",
    "copy the store to another one, and partition it there",
)  # fmt: skip


class PartitioningFolder(DerivedFolder[PartitionInfo]):
    """The folder of unfinished partitions; see `DerivedFolder`.

    Args:
        store: the store.
        target: the partitioned folder.
        settings: what it is made with.
        overwrite: whether one that is there is replaced in the end.
    """

    kind = PARTITIONS

    def __init__(
        self, store: Store, target: Path, settings: PartitionSettings, overwrite: bool = False
    ) -> None:
        super().__init__(store, target, settings.digest, settings.as_dict(), overwrite)

    def _dump(self, info: PartitionInfo) -> bytes:
        return dump(info)

    def _read(self) -> PartitionInfo:
        return read_partition(self.path, self._store)


def unfinished_partitions(folder: Path) -> list[UnfinishedLayout]:
    """The unfinished partitions in a folder, by name; folders in it are not searched.

    Raises:
        OSError: the folder cannot be read.
    """
    return unfinished_layouts(folder, PARTITIONS)


def settings_of(unfinished: UnfinishedLayout) -> PartitionSettings | None:
    """What unfinished partitions are made with; None: that is not known."""
    return unfinished.settings(MEND, parse_settings)
