"""`PackingFolder`: the hidden folder of an unfinished pack, which a later packer goes on with."""

from __future__ import annotations

from pathlib import Path

from gnndrive.store.derived_folder import DerivedFolder, LayoutKind
from gnndrive.store.packed.format import (
    GROUPS,
    PACK_JSON,
    PACKED,
    VERSION,
    PackInfo,
    dump,
    open_pack,
)
from gnndrive.store.packed.settings import PackSettings
from gnndrive.store.reader import Store

PACKS = LayoutKind(
    PACKED, PACK_JSON, VERSION, ".packing", GROUPS, "packing", "remove it first (gnndrive unpack)",
    "pack to another one with out=",
)  # fmt: skip
PACKING, PACKING_JSON, LOCK = PACKS.ending, PACKS.record, PACKS.lock


class PackingFolder(DerivedFolder[PackInfo]):
    """The folder of an unfinished pack; see `DerivedFolder`.

    Args:
        store: the store that is packed.
        target: the pack's folder.
        settings: what the pack is made with.
    """

    kind = PACKS

    def __init__(self, store: Store, target: Path, settings: PackSettings) -> None:
        super().__init__(store, target, settings.digest, settings.as_dict())

    def _dump(self, info: PackInfo) -> bytes:
        return dump(info)

    def _read(self) -> PackInfo:
        return open_pack(self.path, self._store)
