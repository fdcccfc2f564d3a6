"""Tables whose rows tell their number; each test runs once with each device that needs no GPU."""

from pathlib import Path

import pytest

from gnndrive.buffer.devices import host
from gnndrive.common.records import TableFile
from gnndrive.testing import simulation
from gnndrive.testing.simulation import write_told_rows


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> TableFile:
    """200 rows of 64 bytes, eight to a sector, that tell their number."""
    path: Path = tmp_path_factory.mktemp("rows") / "x.bin"
    return write_told_rows(path, 200, 64)


@pytest.fixture(scope="session")
def wide(tmp_path_factory: pytest.TempPathFactory) -> TableFile:
    """200 rows of 1,024 bytes, two sectors each: every second row needs a read of its own."""
    path: Path = tmp_path_factory.mktemp("wide") / "x.bin"
    return write_told_rows(path, 200, 1024)


@pytest.fixture(autouse=True, params=["host", "simulated-cuda"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The device of the test's simulations; the host gathers in pieces."""
    name: str = request.param
    monkeypatch.setattr(host, "PIECES_BYTES", 0)
    monkeypatch.setattr(simulation, "DEFAULT_DEVICE", name)
    return name
