"""The packed layout reads a pack's file; test_conformance.py has what all layouts must do."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnndrive.common.errors import ConfigError
from gnndrive.disk.layouts.base import LayoutContext
from gnndrive.disk.layouts.packed import Packed
from tests.disk.layouts.test_conformance import make_table


def test_the_packed_layout_needs_a_pack(tmp_path: Path) -> None:
    """And reads its file, not the store's."""
    table, packed = make_table(tmp_path, 64, 10), make_table(tmp_path, 64, 7)
    with pytest.raises(ConfigError, match="gnndrive pack"):
        Packed.make(LayoutContext(table.file))
    layout = Packed.make(LayoutContext(table.file, packed=packed.file))
    assert layout.path == packed.file.path
    layout.close()
