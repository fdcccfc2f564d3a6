"""`PackingFolder`: the hidden folder of an unfinished pack, which a later packer goes on with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gnndrive.common.errors import StoreError
from gnndrive.store.derived_folder import DerivedFolder, LayoutKind
from gnndrive.store.packed.format import (
    GROUPS,
    MEND,
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
        tables: the checksums of the packed tables (`PackInfo.tables`). A pack of other tables has
            the same name.
    """

    kind = PACKS

    def __init__(
        self, store: Store, target: Path, settings: PackSettings, tables: Mapping[str, str]
    ) -> None:
        super().__init__(store, target, settings.digest, settings.as_dict())
        self._tables = dict(tables)

    def _record(self) -> dict[str, Any]:
        return super()._record() | {"tables": self._tables}

    def _said_of_target(self) -> str:
        try:
            return f", with the rows of {', '.join(open_pack(self.target).tables)}"
        except StoreError:
            return ""

    def _dump(self, info: PackInfo) -> bytes:
        return dump(info)

    def _read(self) -> PackInfo:
        info = open_pack(self.path, self._store)
        if info.tables != self._tables:
            raise StoreError(f"{self.path} has the rows of other tables: {MEND}")
        return info
