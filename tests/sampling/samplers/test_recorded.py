"""What the recorded sampler must do: return what was recorded, whatever it is asked with."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gnndrive
from gnndrive import LinkNeighborLoader, NeighborLoader
from gnndrive.common.errors import ClosedError, ConfigError
from gnndrive.common.records import Sample, Seeds
from gnndrive.loader.recording import LoaderRecording
from gnndrive.sampling.samplers.base import Sampler, SamplerContext
from gnndrive.sampling.samplers.recorded import Recorded
from gnndrive.sampling.schedules.base import InputNodes
from gnndrive.store.packed.encoding import rows_of
from gnndrive.store.packed.recording import Recording
from tests.loader.hetero.graph import make_data
from tests.store.packed.graphs import make_graph

EPOCHS, SEED = 2, 4
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "disjoint": {"disjoint": True},
    "weighted": {"weight_attr": "weight", "replace": True},
    "links": {"edge_label_index": None, "neg_sampling": "binary", "batch_size": 300},
    "typed": {"input_nodes": "paper"},
}


@pytest.fixture(scope="module", params=KINDS)
def pack(request, tmp_path_factory):
    """A recording of two epochs, and what drew them."""
    path = tmp_path_factory.mktemp("recorded") / "graph.gnn"
    given = {"num_neighbors": [4, 3], "batch_size": 50, "shuffle": True} | KINDS[request.param]
    store = gnndrive.from_data(make_data() if request.param == "typed" else make_graph(), path)
    kind: Any = LinkNeighborLoader if "edge_label_index" in given else NeighborLoader
    assembly = kind(store, buffer="20KB", **given)._assembly()
    info = gnndrive.pack(store, seed=SEED, epochs=EPOCHS, buffer="20KB", **given)
    path = next(Path(store.path, "packed").iterdir())
    recording = Recording(path, info, store, assembly.collate.tables)
    return recording, LoaderRecording(assembly, SEED, EPOCHS)


def seeds_of(number: int, index: int = 0) -> Seeds:
    """Seeds as the recorded schedule names them."""
    none = np.empty(0, np.int64)
    return Seeds(index, none, none, lambda: number)


def made(recording: Recording, **more: Any) -> Sampler:
    return Recorded.make(SamplerContext([4, 3], recording=recording, **more))


def told(sample: Any) -> tuple[Any, ...]:
    """What a sample says, without the order of its nodes and edges."""
    if isinstance(sample, Sample):
        node, target = sample.node, sample.node[sample.col]
        edges = np.stack([node[sample.row], target, sample.edge.astype(np.int64)])
        counts = sample.num_sampled_nodes, sample.num_sampled_edges
        hops = np.split(edges, np.cumsum(counts[1])[:-1], axis=1)
        of_hop = np.split(node, np.cumsum(counts[0])[:-1])
        return (
            of_hop[0].tolist(), [sorted(each.tolist()) for each in of_hop[1:]],
            [sorted(each.T.tolist()) for each in hops], counts,
        )  # fmt: skip
    output = sample.output
    by_type = {**sample.node, **{str(key): each for key, each in sample.edge.items()}}
    return (
        {key: None if each is None else each.tolist() for key, each in by_type.items()},
        output.num_sampled_nodes, output.num_sampled_edges,
    )  # fmt: skip


def test_samples_are_those_that_were_drawn(pack):
    """By hop, for each recorded epoch, whatever the key and whichever thread reads; and each
    entry's place in the packed file has the row of the entry."""
    recording, drawn = pack
    batches = list(drawn.draw(0))
    expected = [told(batch.sample) for batch in batches]
    assert len(expected) == len(recording) == EPOCHS * recording.info.batches
    sampler = made(recording)
    asked = np.random.default_rng(0).permutation(np.tile(np.arange(len(expected)), 2)).tolist()

    def read(number: int) -> Any:
        return sampler.sample(seeds_of(number, 3), number * 77, [])

    with ThreadPoolExecutor(4) as threads:
        for number, sample in zip(asked, threads.map(read, asked), strict=True):
            assert told(sample) == expected[number]
            replayed, seeds = sample.replayed, batches[number].seeds
            assert replayed.seeds.index == 3, "the index is that of the epoch that replays it"
            assert replayed.seeds.input_id.tolist() == seeds.input_id.tolist()
            assert replayed.seeds.of_edges is seeds.of_edges
            for table in recording._tables:
                wanted, places = rows_of(sample, table), replayed.rows[table.name]
                packed, own = (
                    np.memmap(each.path, np.uint8, "r", each.data_offset)[
                        : each.row_count * each.row_bytes
                    ].reshape(each.row_count, each.row_bytes)
                    for each in (recording.files[table.name], table.file)
                )
                assert np.array_equal(packed[places], own[wanted])


def test_bounds_are_those_of_the_largest_batches(pack):
    recording, _ = pack
    types = recording._reader._types
    nodes = {key: each.num_nodes for key, each in types.nodes.items()}
    bounds = made(recording).bounds(1, nodes, dict(types.edges))
    most_nodes, most_edges = dict.fromkeys(nodes, 0), dict.fromkeys(types.edges, 0)
    for number in range(len(recording)):
        sample: Any = made(recording).sample(seeds_of(number), 0, [])
        plain = isinstance(sample, Sample)
        for key in nodes:
            count = len(sample.node if plain else sample.node.get(key, ()))
            most_nodes[key] = max(most_nodes[key], count)
        for edge_type in most_edges:
            found = sample.row if plain else sample.edge.get(edge_type)
            count = 0 if found is None else len(found)
            most_edges[edge_type] = max(most_edges[edge_type], count)
    assert bounds.entries == most_nodes
    assert bounds.nodes == {key: min(count, nodes[key]) for key, count in most_nodes.items()}
    assert bounds.edges == most_edges


def test_stopping_ends_later_calls_and_drawn_seeds_are_refused(pack):
    sampler = made(pack[0])
    drawn = InputNodes(30).seeds(0, np.arange(3))
    for seeds in (drawn, Seeds(0, drawn.node, drawn.input_id)):
        with pytest.raises(ConfigError, match=r"recorded batches only.*strategy='gnndrive'"):
            sampler.sample(seeds, 0, [])
    for _ in range(2):
        sampler.stop()
        with pytest.raises(ClosedError):
            sampler.sample(seeds_of(0), 0, [])
    made(pack[0]).sample(seeds_of(0), 0, [])  # the next epoch's is another


def test_large_arrays_come_from_the_loaders_memory(pack):
    given: list[tuple[int, int]] = []

    def empty(shape: Any, dtype: Any) -> Any:
        array = np.empty(shape, dtype)
        given.append((array.ctypes.data, array.nbytes))
        return array

    sample = made(pack[0], empty=empty).sample(seeds_of(0), 0, [])
    arrays = [*sample.replayed.rows.values()]
    if isinstance(sample, Sample):
        arrays += [sample.node, sample.row, sample.colptr, sample.edge]
    for array in arrays:
        at = array.ctypes.data
        assert any(start <= at <= start + length for start, length in given)


def test_nothing_is_read_without_a_pack():
    others: Any = SimpleNamespace
    with pytest.raises(ConfigError, match="gnndrive pack"):
        Recorded.make(SamplerContext([3], subgraphs=others))
