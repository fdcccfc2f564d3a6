"""`PackingFolder`: the hidden folder of an unfinished pack, which a later packer goes on with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gnndrive.common.errors import StoreError
from gnndrive.store.layout.folder import LayoutFolder
from gnndrive.store.packed.format import MEND, PACKS, PackInfo
from gnndrive.store.packed.settings import PackSettings
from gnndrive.store.reader import Store


class PackingFolder(LayoutFolder[PackInfo]):
    """The folder of an unfinished pack; see `LayoutFolder`.

    Args:
        store: the store that is packed.
        target: the pack's folder.
        settings: what the pack is made with.
        tables: the checksums of the packed tables (`PackInfo.tables`). A pack of other tables has
            the same name.
    """

    def __init__(
        self, store: Store, target: Path, settings: PackSettings, tables: Mapping[str, str]
    ) -> None:
        super().__init__(PACKS, store, target, settings)
        self._tables = dict(tables)

    def _record(self) -> dict[str, Any]:
        return super()._record() | {"tables": self._tables}

    def _said_of_target(self) -> str:
        try:
            return f", with the rows of {', '.join(PACKS.read(self.target).tables)}"
        except StoreError:
            return ""

    def _read(self) -> PackInfo:
        info = super()._read()
        if info.tables != self._tables:
            raise StoreError(f"{self.path} has the rows of other tables: {MEND}")
        return info
