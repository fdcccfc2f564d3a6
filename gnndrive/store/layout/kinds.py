"""`KINDS`: every kind of derived layout, in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gnndrive.store.format import Progress
from gnndrive.store.layout.kind import LayoutInfo, LayoutKind
from gnndrive.store.packed.format import PACKS
from gnndrive.store.packed.verify import verify_pack
from gnndrive.store.partitioned.format import PARTITIONS
from gnndrive.store.partitioned.verify import verify_partition
from gnndrive.store.reader import Store

Verify = Callable[[Path, Store, Progress], LayoutInfo]
"""Takes a layout's folder, the store that it belongs to, and what is told the progress. Reads all
of the layout; StoreError: it is damaged or of another store, ReadError: the disk failed."""

KINDS: dict[LayoutKind[Any], Verify] = {PACKS: verify_pack, PARTITIONS: verify_partition}
