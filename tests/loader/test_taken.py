"""What users write is taken: sizes with short units and shares of the memory, paths of stores."""

from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

import gnndrive
from gnndrive import ConfigError, LinkNeighborLoader, NeighborLoader, StoreError
from gnndrive.common import memory
from gnndrive.common.memory import parse_size

EDGES = torch.arange(40).view(2, 20) % 20


@pytest.fixture(name="path")
def fixture_path(tmp_path: Path) -> Path:
    data = Data(x=torch.zeros(20, 2), edge_index=EDGES)
    return gnndrive.from_data(data, tmp_path / "one.gnn").path


def test_short_units_and_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "process_memory", lambda: 16 * 10**9)
    for text, nbytes in (
        ("8G", 8 * 10**9), ("8 GB", 8 * 10**9), ("8gi", 8 * 2**30), ("8GiB", 8 * 2**30),
        ("50%", 8 * 10**9), (" 12.5 % ", 2 * 10**9), ("100%", 16 * 10**9),
    ):  # fmt: skip
        assert parse_size(text, "memory") == nbytes
    assert parse_size("25%", "--packing-memory") == parse_size("25%", "buffer") == 4 * 10**9
    for wrong in ("0%", "101%", "-1%", "%", "much%"):
        with pytest.raises(ConfigError, match='more than "0%" and at most "100%"'):
            parse_size(wrong, "memory")
    with pytest.raises(ConfigError, match="device_memory='50%': only memory= and buffer= can be"):
        parse_size("50%", "device_memory")
    for size in (0.5, "0.5"):
        with pytest.raises(ConfigError, match=r'write "0.5GB" for gigabytes or "50%" for a part'):
            parse_size(size, "memory")
    with pytest.raises(ConfigError, match=r'write "8.5GB" for gigabytes$'):
        parse_size(8.5, "memory")


def test_a_share_is_of_the_machine_or_of_a_smaller_cgroup(monkeypatch: pytest.MonkeyPatch) -> None:
    def sizes(name: str) -> int:
        return {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}[name]

    monkeypatch.setattr("os.sysconf", sizes)
    for group, least in ((2**63 - 1, 4_096_000), (1_000, 1_000)):
        monkeypatch.setattr(memory, "_of_cgroup", lambda bytes_of, group=group: group)
        assert memory.process_memory() == least


def test_the_plan_says_of_what_a_share_is(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnndrive.common.memory.process_memory", lambda: 2 * 10**9)
    monkeypatch.setattr("gnndrive.loader.assembly.process_memory", lambda: 2 * 10**9)
    with NeighborLoader(path, [2], memory="50%") as loader:
        plan = str(loader.plan())
    assert "of memory=1 GB" in plan
    assert "memory=50%: of the 2 GB that this process may have" in plan


@pytest.mark.parametrize("form", [str, Path])
def test_a_path_stands_for_its_store(path: Path, tmp_path: Path, form) -> None:
    given = form(path)
    for kind in (NeighborLoader, LinkNeighborLoader):
        with kind(given, [2], batch_size=4) as loader:
            assert loader.data.path == path
            assert next(iter(loader)).num_nodes >= 4
    train, _, _ = gnndrive.split_links(given, tmp_path / "links.gnn", num_val=2, num_test=2)
    assert train.num_nodes == 20
    gnndrive.partition(given, parts=2, method="random")
    gnndrive.pack(given, [2], batch_size=4)
    assert gnndrive.infer(GraphSAGE(2, 4, 1), given).h.shape == (20, 4)


def test_a_path_without_a_store_is_an_error_of_the_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not there"):
        NeighborLoader(tmp_path / "none.gnn", [2])
