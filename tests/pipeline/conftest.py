"""Tables whose rows tell their number."""

from pathlib import Path

import pytest

from gnndrive.records import TableFile
from gnndrive.testing.simulation import write_told_rows


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> TableFile:
    """200 rows of 64 bytes, eight to a sector, that tell their number."""
    path: Path = tmp_path_factory.mktemp("rows") / "x.bin"
    return write_told_rows(path, 200, 64)


@pytest.fixture(scope="session")
def wide(tmp_path_factory: pytest.TempPathFactory) -> TableFile:
    """200 rows of 1,024 bytes, two sectors each: every second row is a read of its own."""
    path: Path = tmp_path_factory.mktemp("wide") / "x.bin"
    return write_told_rows(path, 200, 1024)
