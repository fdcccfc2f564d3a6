"""`KINDS`: every kind of derived layout, in the order in which they are shown."""

from __future__ import annotations

from typing import Any

from gnndrive.store.layout.kind import LayoutKind
from gnndrive.store.packed.format import PACKS
from gnndrive.store.partitioned.format import PARTITIONS
from gnndrive.store.striped.format import STRIPES

KINDS: tuple[LayoutKind[Any], ...] = (PACKS, PARTITIONS, STRIPES)
