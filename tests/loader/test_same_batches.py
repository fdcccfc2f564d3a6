"""However batches are loaded, they are the same: by seed, epoch and number alone."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from torch_geometric.data import Data

import gnndrive
from gnndrive import ConfigError, Labor, NeighborLoader, NeighborSampler, Store
from gnndrive.common.memory import size_or_none
from gnndrive.plan.host_level import HostLevel
from gnndrive.sampling.labor import Sampling
from gnndrive.sampling.samplers.base import batch_key
from gnndrive.sampling.samplers.uniform import Uniform
from gnndrive.sampling.topologies.mmap import Mmap
from gnndrive.strategies import GNNDrive, Strategy, strategy
from gnndrive.strategies.base import Scheme
from gnndrive.testing.faults import NOISE
from tests.given import moved
from tests.loader.batches import assert_all_same, assert_same, check, simulate, stage
from tests.loader.conftest import NODES
from tests.loader.diskgnn.packs import assert_same_sample, loader_of, make_pack
from tests.loader.hetero.graph import make_data
from tests.second import Runs

GIVEN: dict[str, Any] = {"shuffle": True, "seed": 3}
LABOR: dict[str, Any] = GIVEN | {"sampling": "labor", "batch_dependency": 5}
Epochs = list[list[Data]]


@dataclass(frozen=True, kw_only=True)
class WithVictims(GNNDrive):
    """GNNDrive's strategy with a host level of a size that is given, without `memory=` too."""

    victim_buffer: str | int = "auto"

    def open(self, assembly: Any) -> Scheme:
        """See `Strategy.open`."""
        scheme, given = Scheme(), self.victim_buffer
        nbytes = None if given == "auto" else size_or_none(given, "victim_buffer")
        level = None if nbytes == 0 else HostLevel.below(assembly.device[0], nbytes)
        scheme.elastic = lambda assembly: level
        return scheme


def victim(rule: str) -> Strategy:
    """The strategy with a rule for what the victim buffer keeps."""
    return WithVictims(name=rule, tiers=(rule, "disk"))


DEVICE: dict[str, Any] = {"device": "simulated-cuda", "buffer": "50KB"}
SMALL: dict[str, Any] = {"device": "simulated-cuda", "buffer": "30KB", "sweep": 1}
WAYS: dict[str, dict[str, Any]] = {
    "threads": {"engine": "threads", "samplers": 1, "extractors": 4},
    "simulated": {"engine": "simulated", "samplers": 4, "extractors": 4},
    "shallow": {"io_depth": 1, "num_workers": 3},
    "all in memory": {"buffer": "1MB"},
    "short queues": {"extracting_queue": 1, "training_queue": 1, "gap": 0},
    "any order": {"in_order": False, "engine": "simulated"},
    "lru": {"policy": "lru", "sweep": 1},
    "mmap": {"topology": "mmap"},
    "direct": {"topology": "direct", "engine": "simulated"},
    "direct, some cached": {"topology": "direct", "neighbour_cache": "4KB"},
    "memory=": {"memory": "100MB", "buffer": None},
    "device": DEVICE | {"staging": 0},
    "device, little staging": DEVICE | {"staging": 4, "engine": "simulated"},
    "device, least staging": DEVICE | {"staging": 2, "engine": "threads"},
    "slots on the host": DEVICE | {"device_memory": 0, "staging": 0, "engine": "simulated"},
    "slots on the host, small pieces": DEVICE | {"device_memory": 0, "staging": 5},
    "victims": SMALL | {"strategy": victim("victim"), "staging": 0},
    "victims, little staging": SMALL | {"strategy": victim("victim-queues"), "staging": 4,
                                        "engine": "simulated"},
    "ali+pg": {"strategy": "ali+pg"},
    "ali+pg, cache": {"strategy": "ali+pg", "neighbour_cache": "20KB"},
    "ali+pg, memory=": {"strategy": "ali+pg", "memory": "60MB", "buffer": None},
    "lsm-gnn": {"strategy": "lsm-gnn", "buffer": "30KB"},
    "lsm-gnn, device": SMALL | {"strategy": "lsm-gnn", "superbatch": 6},
    "ginex": {"strategy": "ginex", "buffer": "30KB"},
    "ginex, short": {"strategy": "ginex", "superbatch": 3},
    "ginex, from disk": {"strategy": "ginex", "topology": "direct", "superbatch": 10},
    "ginex, several apart": {"strategy": "ginex", "phases": "apart", "superbatch": 7},
    "ginex, apart from disk": {"strategy": "ginex", "phases": "apart", "superbatch": 9,
                               "topology": "direct"},
    "pyg+": {"strategy": "pyg+", "buffer": None},
    "pyg+, any order": {"strategy": "pyg+:threads=3,advise=normal", "buffer": None,
                        "memory": "40MB", "in_order": False},
    "labor, direct": LABOR | {"topology": "direct", "neighbour_cache": 0},
    "labor, some cached": LABOR | {"topology": "direct", "neighbour_cache": "4KB", "samplers": 2},
    "labor, memory=": LABOR | {"memory": "100MB", "buffer": None},
    "labor, any order": LABOR | {"in_order": False, "samplers": 1, "extractors": 1},
}  # fmt: skip


@pytest.fixture(scope="module")
def epochs(store: Store) -> dict[str, Epochs]:
    """Two epochs, drawn by one sampler from the resident graph, of each `sampling=`."""
    found = {}
    for given in (GIVEN, LABOR):
        with NeighborLoader(
            store, [4, 3], batch_size=16, buffer="40KB",
            **moved({"engine": "threads", "topology": "resident", "samplers": 1, **given}),
        ) as loader:  # fmt: skip
            found[given.get("sampling", "neighbor")] = [list(loader) for _ in range(2)]
    assert len(found["neighbor"][0]) == NODES // 16
    return found


@pytest.mark.parametrize("way", WAYS)
def test_the_batches_are_the_same(make, data, epochs, way, monkeypatch, seeds):
    given = GIVEN | WAYS[way]
    (seed,) = seeds(1)
    simulate(monkeypatch, seed, NOISE)
    if "staging" in given:
        stage(monkeypatch, given.pop("staging") + 6 * seed)
    loader = make(**given)
    for epoch in epochs[given.get("sampling", "neighbor")]:
        found = list(loader)
        if given.get("in_order") is False:
            places = {tuple(batch.input_id.tolist()): batch for batch in found}
            found = [places[tuple(batch.input_id.tolist())] for batch in epoch]
        for expected, batch in zip(epoch, found, strict=True):
            assert_same(expected, batch)
            if "device" not in given:
                check(batch, data)
    stats = loader.stats()
    if given.get("engine") == "simulated":
        assert stats["retries"] > 0
    if way.startswith("victims"):
        assert stats["rows_taken_back"] > 0
        loader.close()
        assert not loader._runtime.device.driver.busy
        assert loader._runtime.device.driver.pinned_bytes == 0


@pytest.mark.parametrize(
    "topology", [{"topology": "mmap"}, {"topology": "direct", "neighbour_cache": 0}], ids=str
)
def test_two_iterators_at_once_do_not_disturb_each_other(make, epochs, topology):
    """Each waits for all of its own samples, in threads that they share. The first has groups of
    batches, unless samplers wait for the disk; the second's buffer holds one batch."""
    loader = make(samplers=4, extracting_queue=2, buffer="60KB", **topology, **GIVEN)
    for batches in zip(loader, loader, *epochs["neighbor"], strict=True):
        assert_same(batches[0], batches[2])
        assert_same(batches[1], batches[3])


def test_batches_are_those_of_the_sampler(epochs, store):
    topology = Mmap(store.indptr, store.indices)
    for name, sampling in (("neighbor", Sampling()), ("labor", Sampling("labor", 5))):
        sampler = Uniform([4, 3], sampling=sampling)
        for epoch, batches in enumerate(epochs[name]):
            for number, batch in enumerate(batches):
                seeds = batch.n_id[: batch.batch_size].numpy()
                expected = sampler.sample_nodes(seeds, batch_key(3, epoch, number), topology)
                assert np.array_equal(batch.n_id.numpy(), expected.node)
                assert np.array_equal(batch.edge_index[0].numpy(), expected.row)


def test_samplers_read_together(make):
    """Four samplers read for four batches in one pass what one sampler reads four times."""
    way = {"topology": "direct", "neighbour_cache": 0, "gap": 0, "num_neighbors": [5, 5]}
    found = []
    for samplers, queue in ((1, 8), (4, 8), (8, 4)):
        loader = make(samplers=samplers, extracting_queue=queue, **way)
        assert len(list(loader)) == len(loader)
        found.append(loader.stats())
        assert found[-1]["neighbours_wanted"] == found[-1]["edges"]
        assert found[-1]["neighbours_cached"] == 0 < found[-1]["topology_bytes_read"]
    alone, four, three = (stats["topology_requests"] for stats in found)
    assert four < three < alone


# ---- sampling="labor"


def test_batches_have_fewer_nodes_and_dependent_ones_more_in_common(make, data):
    """stats() says how many rows were delivered and how many of them loaded."""
    rows, loaded = [], []
    for sampling in ("neighbor", Labor(), Labor(64)):
        loader = make(
            sampling=sampling, shuffle=True, seed=3, sweep=1,
            policy="lru", num_neighbors=[4, 4], samplers=1, extractors=1,
        )  # fmt: skip
        list(loader)
        rows.append(loader.stats()["rows"])
        loaded.append(loader.stats()["rows_loaded"])
        check(loader([3, 1, 4]), data)
    assert rows[1] < 0.95 * rows[0]
    assert loaded[2] < 0.95 * loaded[1]


def test_a_state_without_sampling_is_of_neighbour_sampling(make, epochs):
    """As states of earlier versions are."""
    loader = make(**GIVEN)
    state = loader.state_dict() | {"batches": 2}
    del state["settings"]["sampling"], state["settings"]["batch_dependency"]
    loader.load_state_dict(state)
    assert_all_same(epochs["neighbor"][0][2:], loader)
    with pytest.raises(ConfigError, match="sampling was 'neighbor' and is 'labor'"):
        make(**LABOR).load_state_dict(state)


def test_a_pack_replays_them_and_is_found_by_them(data, tmp_path):
    store = gnndrive.from_data(data, tmp_path / "graph.gnn")
    given = {"num_neighbors": [4, 3], "batch_size": 16, "shuffle": True}
    labor: dict[str, Any] = {**given, "sampling": "labor", "batch_dependency": 5}
    make_pack(store, labor)
    with loader_of(store, labor) as replayed, loader_of(store, labor, strategy="gnndrive") as drawn:
        for left, right in zip(replayed, drawn, strict=True):
            assert_same_sample(left, right)
    for other in (given, {**labor, "batch_dependency": 6}):
        with pytest.raises(ConfigError, match="sampling was 'labor, batch_dependency 5'"):
            loader_of(store, other)


def test_batches_that_were_drawn_for_a_plan_are_kept_apart(make):
    ways: list[dict[str, Any]] = [{}, {"sampling": "labor"}, LABOR]
    texts = [make(**way)._assembly().drawn_settings(16) for way in ways]
    assert len(set(texts)) == 3
    assert texts[0].endswith("replace False"), "earlier entries are found again"


def test_a_plan_counts_the_lists(make):
    plans = [make(memory="100MB", buffer=None, samplers=1, **way).plan() for way in ({}, LABOR)]
    before, after = ({each.what: each.nbytes for each in plan.lines} for plan in plans)
    assert after["sampler scratch"] > before["sampler scratch"] + (1 << 20)


def test_types_and_samplers_of_the_users_are_refused(make, store, tmp_path):
    hetero = gnndrive.from_data(make_data(), tmp_path / "hetero.gnn")
    mine = replace(strategy("gnndrive"), name="mine", sampler=Runs)
    for words, given in (
        (r'several types.*give sampling="neighbor"', {"data": hetero, "input_nodes": "paper"}),
        ('a sampler of your own give sampling="neighbor"',
         {"neighbor_sampler": NeighborSampler(store, [3])}),
        ("sampler 'runs' of strategy='mine' draws for each node", {"strategy": mine}),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=words):
            make([3], sampling="labor", **given)
    make(strategy=mine)
