"""Tables whose rows tell their number; each seed has a device, and a soak may take a rule out."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnndrive.buffer.devices import host
from gnndrive.common.records import TableFile
from gnndrive.disk.tiers import rolled
from gnndrive.testing import simulation
from gnndrive.testing.simulation import write_told_rows
from tests import soak

DEVICES = ("host", "simulated-cuda")


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


@pytest.fixture
def device() -> str:
    """The device of the test's simulations; `parametrize("device", DEVICES)` overrides it."""
    return DEVICES[0]


@pytest.fixture(autouse=True)
def default_device(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulations use `device`; the host gathers in pieces; rows are copied ahead in small parts,
    with few buffers."""
    monkeypatch.setattr(host, "PIECES_BYTES", 0)
    for name, value in {"PART_BYTES": 4096, "SPARE": 2, "GROW": 3}.items():
        monkeypatch.setattr(rolled, name, value)
    monkeypatch.setattr(simulation, "DEFAULT_DEVICE", device)


def use_device_of(seed: int, patch: pytest.MonkeyPatch) -> None:
    """Even seeds simulate the host, odd ones a GPU whose streams are queues."""
    patch.setattr(simulation, "DEFAULT_DEVICE", DEVICES[seed % 2])


@pytest.fixture(name="seeds")
def seeds_with_devices(monkeypatch: pytest.MonkeyPatch) -> soak.Seeds:
    """`seeds(3)` as in all tests; each seed has its device."""

    def each(count: int) -> Iterator[int]:
        for seed in soak.seeds(count):
            use_device_of(seed, monkeypatch)
            yield seed

    return each


@pytest.fixture(autouse=True)
def without_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make soak` may take a rule out, to show that it would find the breach."""
    if name := os.environ.get(soak.DROPPED):
        from tests.pipeline import dropped

        vars(dropped)[name](monkeypatch)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A soak without a rule leaves out the tests that take one out themselves."""
    if os.environ.get(soak.DROPPED):
        items[:] = [item for item in items if "without_the_rule" not in item.name]
