"""The packs that are being made, or whose packer was killed; see `unfinished_layout.py`."""

from __future__ import annotations

from pathlib import Path

from gnndrive.store.packed.folder import PACKS
from gnndrive.store.packed.format import MEND
from gnndrive.store.packed.settings import PackSettings, parse_settings
from gnndrive.store.unfinished_layout import UnfinishedLayout, unfinished_layouts


def unfinished_packs(folder: Path) -> list[UnfinishedLayout]:
    """The unfinished packs in a folder, by name; folders in it are not searched.

    Raises:
        OSError: the folder cannot be read.
    """
    return unfinished_layouts(folder, PACKS)


def settings_of(pack: UnfinishedLayout) -> PackSettings | None:
    """What an unfinished pack is made with; None: that is not known."""
    return pack.settings(MEND, parse_settings)
