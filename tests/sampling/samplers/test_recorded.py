"""What the recorded sampler must do: return what was recorded, whatever it is asked with."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gnndrive
from gnndrive import NeighborLoader
from gnndrive.common.errors import ClosedError, ConfigError
from gnndrive.common.records import Seeds
from gnndrive.sampling.samplers.base import Sampler, SamplerContext
from gnndrive.sampling.samplers.recorded import Recorded
from gnndrive.sampling.schedules.base import InputNodes
from gnndrive.store.packed.recording import Recording
from gnndrive.strategies.packs.recording import LoaderRecording
from tests.given import moved
from tests.store.packed.packs import make_graph

EPOCHS, SEED = 2, 4
GIVEN: dict[str, Any] = {"num_neighbors": [4, 3], "batch_size": 50, "shuffle": True}


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    """A recording of two epochs, and the batches that were drawn for it."""
    store = gnndrive.from_data(make_graph(), tmp_path_factory.mktemp("recorded") / "graph.gnn")
    assembly = NeighborLoader(store, buffer="20KB", **moved(GIVEN))._assembly()
    info = gnndrive.pack(store, seed=SEED, epochs=EPOCHS, buffer="20KB", **GIVEN)
    path = next(Path(store.path, "packed").iterdir())
    tables = assembly.collate.tables
    recording = Recording(path, info, store, tables, {table.name for table in tables})
    return recording, list(LoaderRecording(assembly, SEED, EPOCHS).draw(0))


def seeds_of(number: int, index: int = 0) -> Seeds:
    none = np.empty(0, np.int64)
    return Seeds(index, none, none, lambda: number)


def made(recording: Recording, **more: Any) -> Sampler:
    return Recorded.make(SamplerContext([4, 3], recording=recording, **more))


def test_samples_are_those_that_were_drawn(pack):
    """For each recorded epoch, whatever the key and whichever thread reads; bounds are those of the
    largest."""
    recording, batches = pack
    assert len(batches) == len(recording) == EPOCHS * recording.info.batches
    sampler = made(recording)
    asked = np.random.default_rng(0).permutation(np.tile(np.arange(len(batches)), 2)).tolist()
    with ThreadPoolExecutor(4) as threads:
        found = threads.map(lambda at: sampler.sample(seeds_of(at, 3), at * 77, []), asked)
        for number, sample in zip(asked, found, strict=True):
            drawn = batches[number]
            assert sorted(sample.node) == sorted(drawn.sample.node)
            assert len(sample.edge) == len(drawn.sample.edge)
            seeds = sample.replayed.seeds
            assert seeds.index == 3, "the index is that of the epoch that replays it"
            assert seeds.input_id.tolist() == drawn.seeds.input_id.tolist()
    nodes = max(len(batch.sample.node) for batch in batches)
    edges = max(len(batch.sample.edge) for batch in batches)
    for count in (10_000, nodes - 1):
        bounds = sampler.bounds(1, {None: count}, {None: 10_000})
        assert (bounds.entries, bounds.edges) == ({None: nodes}, {None: edges})
        assert bounds.nodes == {None: min(nodes, count)}


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

    sample: Any = made(pack[0], empty=empty).sample(seeds_of(0), 0, [])
    rows = sample.replayed.rows.values()
    for array in (*rows, sample.node, sample.row, sample.colptr, sample.edge):
        at = array.ctypes.data
        assert any(start <= at <= start + length for start, length in given)
