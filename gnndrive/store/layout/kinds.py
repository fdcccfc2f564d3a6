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
"""Takes a layout's folder, the store that it belongs to, and what is called as progress(what, done,
total). Reads the whole layout and checks it against the store; raises StoreError if it is damaged
or belongs to another store, and ReadError if a file cannot be read."""

KINDS: dict[LayoutKind[Any], Verify] = {PACKS: verify_pack, PARTITIONS: verify_partition}
