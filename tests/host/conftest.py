"""A table whose rows tell their number, and a host device that gathers in pieces."""

from pathlib import Path

import pytest

from gnndrive.buffer.devices import host
from gnndrive.common.records import TableFile
from gnndrive.testing.simulation import write_told_rows


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> TableFile:
    """200 rows of 64 bytes, eight to a sector, that tell their number."""
    path: Path = tmp_path_factory.mktemp("rows") / "x.bin"
    return write_told_rows(path, 200, 64)


@pytest.fixture(autouse=True)
def pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small batches are gathered in pieces too, so that their tails are released early."""
    monkeypatch.setattr(host, "PIECES_BYTES", 0)
