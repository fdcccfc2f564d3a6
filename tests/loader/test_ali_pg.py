"""The strategy "ali+pg": gnndrive's batches, with two caches by degree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import gnndrive
from gnndrive import ConfigError, NeighborLoader, Store
from gnndrive.buffer.policies.static import Static
from gnndrive.strategies import strategy
from tests.loader.batches import assert_same
from tests.loader.conftest import Make
from tests.loader.hetero.graph import check as check_types
from tests.loader.hetero.graph import make_data
from tests.loader.skewed import skewed_store

GIVEN: dict[str, Any] = {"shuffle": True, "seed": 5}


@pytest.fixture(scope="module")
def skewed(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """2,000 nodes, some of which have most of the out-edges."""
    folder = tmp_path_factory.mktemp("ali") / "skewed.gnn"
    return skewed_store(folder, nodes=2_000, edges=30_000, columns=64, seed=2)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"neighbour_cache": "20KB"},
        {"topology": "resident"},
        {"memory": "60MB", "buffer": None},
        {"disjoint": True},
        {"in_order": False, "sweep": 1},
    ],
)
def test_its_batches_are_those_of_gnndrive(make: Make, options: dict[str, Any]) -> None:
    expected = list(make(**GIVEN))
    found = list(make(**GIVEN, strategy="ali+pg", **options))
    if options.get("in_order") is False:
        found.sort(key=lambda each: next(
            at for at, one in enumerate(expected) if torch.equal(one.input_id, each.input_id)
        ))  # fmt: skip
    if options.get("disjoint"):
        expected = list(make(**GIVEN, disjoint=True))
    for one, other in zip(expected, found, strict=True):
        assert_same(one, other)


def test_batches_of_several_types_are_right(make: Make, tmp_path: Path) -> None:
    data = make_data()
    store = gnndrive.from_data(data, tmp_path / "types.gnn")
    arguments: dict[str, Any] = {
        "data": store, "num_neighbors": [3, 2], "input_nodes": "paper", "batch_size": 8,
        "buffer": "20KB", **GIVEN,
    }  # fmt: skip
    for one, other in zip(make(**arguments, strategy="ali+pg"), make(**arguments), strict=True):
        check_types(one, data)
        assert torch.equal(one["paper"].n_id, other["paper"].n_id)


def hits(loader: NeighborLoader) -> float:
    with loader:
        assert sum(batch.num_nodes for batch in loader)
        stats = loader.stats()
    return float(stats["rows_hit"]) / float(stats["rows"])


def test_hubs_stay(skewed: Store) -> None:
    """More of a batch's rows are hits than if the row leaves that was released longest ago."""
    arguments: dict[str, Any] = {
        "num_neighbors": [5, 5], "batch_size": 10, "buffer": "150KB", "sweep": 1,
        "extracting_queue": 1, "training_queue": 1, **GIVEN,
    }  # fmt: skip
    lru = hits(NeighborLoader(skewed, **arguments, policy="lru"))
    assert hits(NeighborLoader(skewed, **arguments, strategy="ali+pg")) > lru + 0.05


def test_the_two_caches_share_the_memory(skewed: Store) -> None:
    """What the neighbour cache takes, the feature buffer lacks."""
    slots, cached = [], []
    for cache in (0, 20_000, 60_000):
        loader = NeighborLoader(
            skewed, [5, 5], batch_size=10, memory="73MB", strategy="ali+pg", topology="direct",
            neighbour_cache=cache, samplers=1, extracting_queue=2, training_queue=1, **GIVEN,
        )  # fmt: skip
        with loader:
            plan = loader.plan()
            assert plan.total_bytes <= 73_000_000
            assert len(list(loader)) == 200
            cached.append(int(loader.stats()["neighbours_cached"]))
        slots.append(plan.slots)
    assert cached[0] == 0 < cached[1] < cached[2]
    assert slots == sorted(slots, reverse=True)


def test_its_parts() -> None:
    found = strategy("ali+pg")
    assert found.topologies[0] == "direct"
    assert found.policy == Static.name
    with pytest.raises(ConfigError, match=r"there are: auto, ali\+pg, "):
        strategy("ali")
