"""What the recorded sampler must do: return what was recorded, whatever it is asked with."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gnndrive
from gnndrive import NeighborLoader
from gnndrive.common.errors import ClosedError, ConfigError
from gnndrive.common.records import Sample, Seeds
from gnndrive.loader.recording import LoaderRecording
from gnndrive.sampling.samplers.base import Sampler, SamplerContext
from gnndrive.sampling.samplers.recorded import Recorded
from gnndrive.sampling.schedules.base import InputNodes
from gnndrive.store.packed.recording import Recording
from tests.loader.hetero.graph import make_data
from tests.store.packed.graphs import make_graph

EPOCHS, SEED = 2, 4
GIVEN: dict[str, Any] = {"num_neighbors": [4, 3], "batch_size": 50, "shuffle": True}


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "typed"])
def pack(request, tmp_path_factory):
    """A recording of two epochs, and what drew them."""
    path = tmp_path_factory.mktemp("recorded") / "graph.gnn"
    given = GIVEN | ({"input_nodes": "paper"} if request.param else {})
    store = gnndrive.from_data(make_data() if request.param else make_graph(), path)
    assembly = NeighborLoader(store, buffer="20KB", **given)._assembly()
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


def told(sample: Any) -> Any:
    """The nodes of a sample, sorted, and how many edges each type has."""
    if isinstance(sample, Sample):
        return sorted(sample.node.tolist()), len(sample.edge)
    nodes = {key: sorted(each.tolist()) for key, each in sample.node.items()}
    return nodes, {key: each is not None and len(each) for key, each in sample.edge.items()}


def test_samples_are_those_that_were_drawn(pack):
    """For each recorded epoch, whatever the key and whichever thread reads."""
    recording, drawn = pack
    batches = list(drawn.draw(0))
    assert len(batches) == len(recording) == EPOCHS * recording.info.batches
    sampler = made(recording)
    asked = np.random.default_rng(0).permutation(np.tile(np.arange(len(batches)), 2)).tolist()
    with ThreadPoolExecutor(4) as threads:
        found = threads.map(lambda at: sampler.sample(seeds_of(at, 3), at * 77, []), asked)
        for number, sample in zip(asked, found, strict=True):
            assert told(sample) == told(batches[number].sample)
            seeds = sample.replayed.seeds
            assert seeds.index == 3, "the index is that of the epoch that replays it"
            assert seeds.input_id.tolist() == batches[number].seeds.input_id.tolist()


def test_bounds_are_those_of_the_largest_batches(pack):
    recording, _ = pack
    types = recording._reader._types
    nodes = {key: each.num_nodes for key, each in types.nodes.items()}
    bounds = made(recording).bounds(1, nodes, dict(types.edges))
    most_nodes, most_edges = dict.fromkeys(nodes, 0), dict.fromkeys(types.edges, 0)
    for number in range(len(recording)):
        sample: Any = made(recording).sample(seeds_of(number), 0, [])
        plain = isinstance(sample, Sample)
        for most, found in ((most_nodes, sample.node), (most_edges, sample.edge)):
            for key in most:
                each = found if plain else found.get(key)
                most[key] = max(most[key], 0 if each is None else len(each))
    assert (bounds.entries, bounds.edges) == (most_nodes, most_edges)
    assert bounds.nodes == {key: min(count, nodes[key]) for key, count in most_nodes.items()}


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
    others: Any = SimpleNamespace
    with pytest.raises(ConfigError, match="gnndrive pack"):
        Recorded.make(SamplerContext([3], subgraphs=others))


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
