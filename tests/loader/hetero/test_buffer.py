"""Several tables behind one feature buffer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import HeteroData
from torch_geometric.sampler import BaseSampler, NumNeighbors, SamplerOutput

import gnndrive
from gnndrive import ConfigError, NeighborLoader
from tests.loader.hetero.conftest import Make
from tests.loader.hetero.graph import CITES, EDGES, HOSTS, NODES, WIDTHS, WRITES, WRITTEN, check


def test_the_tables_share_the_buffer_by_their_largest_batches(make: Make) -> None:
    plan = make(buffer="20KB", batch_size=4).plan()
    tables = {table.name: table for table in plan.tables}
    assert set(tables) == {
        "nodes/paper/x", "nodes/author/x", "nodes/venue/x", "edges/author__writes__paper/edge_attr",
    }  # fmt: skip
    assert plan.buffer_bytes <= 20_000
    open_ones = [table for table in plan.tables if table.slots < table.rows]
    shares = [table.slots / table.batch_rows_max for table in open_ones]
    assert len(shares) > 1
    assert max(shares) - min(shares) < 0.1
    assert tables["nodes/venue/x"].slots == NODES["venue"]
    assert "7 of 7 nodes/venue/x" in str(plan)


def test_a_buffer_too_small_names_one_that_works(make: Make, data: HeteroData) -> None:
    loader = make(buffer="20KB")
    with pytest.raises(ConfigError, match="give it at least buffer=") as caught:
        list(loader)
    for _ in range(4):  # another batch may want more
        asked = str(caught.value).split('at least buffer="')[1].split('"')[0]
        try:
            batches = list(make(buffer=asked))
            break
        except ConfigError as error:
            caught.value.args = error.args
    for batch in batches:
        check(batch, data)
    any_batch = str(caught.value).split("(")[2].split(" holds any batch")[0]
    assert len(list(make(buffer=any_batch))) == len(batches)


def test_a_budget_for_everything(make: Make) -> None:
    everything = make(buffer=None, memory="40MB").plan()
    assert everything.holds_everything
    assert "because all tables fit" in str(everything)
    with pytest.raises(ConfigError, match="is too little") as caught:
        make(buffer=None, memory=1, topology="resident").plan()
    least = str(caught.value).split('memory="')[1].split('"')[0]
    tight = make(buffer=None, memory=least, topology="resident")
    assert not tight.plan().holds_everything
    assert tight.plan().total_bytes < everything.total_bytes
    assert len(list(tight)) == len(tight)


def test_two_iterators_at_once(make: Make, data: HeteroData) -> None:
    loader = make()
    for one, other in zip(loader, loader, strict=True):
        check(one, data)
        check(other, data)


def test_integers_are_converted_to_floats(make: Make, data: HeteroData) -> None:
    for batch in make(feature_dtype="float32"):
        for name in WIDTHS:
            assert torch.equal(batch[name].x, data[name].x[batch[name].n_id].float())


NONE = {WRITES: [0, 0], WRITTEN: [0, 0], CITES: [2, 2], HOSTS: [0, 0]}


@pytest.mark.parametrize("device", ["cpu", "simulated-cuda"])
def test_tables_that_no_batch_needs(make: Make, data: HeteroData, device: str) -> None:
    loader = make(fanout=NONE, batch_size=4, buffer=28 * 32, device=device)
    assert {table.name: table.slots for table in loader.plan().tables} == {
        "nodes/paper/x": 28, "nodes/author/x": 0, "nodes/venue/x": 0,
        "edges/author__writes__paper/edge_attr": 0,
    }  # fmt: skip
    for batch in loader:
        check(batch, data)
        assert len(batch["author"].n_id) == 0
    assert len(list(make(fanout=NONE, batch_size=4, buffer=None, device=device))) == len(loader)


def test_rows_of_all_tables_are_counted(make: Make) -> None:
    loader = make(buffer="500KB", batch_size=200)
    (batch,) = loader
    rows = sum(len(batch[name].n_id) for name in WIDTHS) + len(batch[WRITES].e_id)
    assert loader.stats()["rows_loaded"] == rows
    expected = sum(len(batch[name].n_id) * batch[name].x[0].nbytes for name in WIDTHS)
    expected += len(batch[WRITES].e_id) * 128
    assert loader.stats()["bytes_wanted"] == expected


def test_pinned_staging_of_small_tables_is_small(make: Make) -> None:
    plan = make(device="simulated-cuda").plan()
    (staging,) = [line for line in plan.lines if line.what == "pinned staging"]
    assert staging.nbytes < 1_000_000


def test_all_topologies_take_turns(make: Make) -> None:
    """Fetches are planned for one at a time, whatever edge type a sampler is at."""
    loader = make(topology="direct")
    next(iter(loader))
    topologies = loader._runtime._files.adjacency.topologies
    assert len({id(topology._lock) for topology in topologies}) == 1


def test_packed_indices_have_as_many_bits_as_their_sources_need(make: Make) -> None:
    loader = make(topology="resident")
    next(iter(loader))
    for topology, edge_type in zip(loader._runtime._files.adjacency.topologies, EDGES, strict=True):
        bits = (NODES[edge_type[0]] - 1).bit_length()
        packed = -(-EDGES[edge_type] * bits // 8) + 8
        pointers = 4 * (NODES[edge_type[2]] + 1)
        assert topology.nbytes == packed + pointers


def test_numbers_of_neighbours_with_a_default(make: Make, data: HeteroData) -> None:
    given = NumNeighbors({CITES: [2, 2]}, default=[1, 1])
    loader = make(fanout=given)
    assert loader.num_neighbors == {**{key: [1, 1] for key in EDGES}, CITES: [2, 2]}
    for batch in loader:
        check(batch, data)


class Odd(BaseSampler):
    """Returns what it was given."""

    def __init__(self, out: Any) -> None:
        self._out = out

    def sample_from_nodes(self, index: Any, **_: Any) -> Any:
        return self._out

    def sample_from_edges(self, index: Any, **_: Any) -> Any:
        return self._out


@pytest.mark.parametrize("out", [None, SamplerOutput(*[torch.zeros(1).long()] * 4)])
def test_a_sampler_that_returns_something_else(make: Make, out: Any) -> None:
    with pytest.raises(ConfigError, match="return a HeteroSamplerOutput"):
        next(iter(make(neighbor_sampler=Odd(out))))


def test_a_graph_without_features(tmp_path: Path) -> None:
    data = HeteroData()
    data["a"].num_nodes, data["b"].num_nodes = 5, 4
    data["a", "to", "b"].edge_index = torch.tensor([[0, 1, 2, 3], [0, 0, 1, 3]])
    store = gnndrive.from_data(data, tmp_path / "bare.gnn")
    with NeighborLoader(store, [-1], input_nodes="b", batch_size=4) as loader:
        (batch,) = loader
    assert batch["a"].n_id[batch["a", "to", "b"].edge_index[0]].tolist() == [0, 1, 2, 3]
    assert (batch["a"].num_nodes, batch["b"].num_nodes) == (4, 4)
    assert all("num_nodes" in batch[name] for name in ("a", "b"))  # as in PyG's batches
