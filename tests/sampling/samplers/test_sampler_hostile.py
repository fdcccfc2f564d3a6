"""Damaged graphs, bad arguments and stopped samplers give errors, never a crash."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from gnndrive.common.errors import ClosedError, ConfigError, StoreError
from gnndrive.sampling.samplers.uniform import Uniform
from gnndrive.sampling.topologies.mmap import Mmap
from tests.sampling.samplers.graphs import Scratch, assert_contract, random_graph, star

EXTREMES = [-(2**63), -(2**31), -1, 2**31 - 1, 2**31, 2**32, 2**63 - 1]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("bad", [-1, -(2**31), 6, 2**31 - 1])
def test_a_neighbour_out_of_range(dtype: type, bad: int) -> None:
    indices = np.array([1, 2, bad, 4, 5], dtype)
    topology = Mmap(np.array([0, 5, 5, 5, 5, 5, 5]), indices, "graph/indices.npy")
    with pytest.raises(StoreError, match=rf"indices\.npy.*node {bad},.*gnndrive verify"):
        Uniform([-1]).sample_nodes(np.array([0]), 0, topology)
    assert (
        len(Uniform([3]).sample_nodes(np.array([5]), 0, topology).node) == 1
    )  # the bad index is not read: no error


@pytest.mark.parametrize("bad", [*EXTREMES, 8])
def test_index_pointers_out_of_range(bad: int) -> None:
    indptr = np.array([0, 2, 4, 7])
    indptr[1] = bad
    topology = Mmap(indptr, np.zeros(7, np.int32), "graph/indptr.npy")
    for node in (0, 1):
        if (node == 0 and bad in range(8)) or (node == 1 and bad in range(5)):
            continue
        with pytest.raises(StoreError, match=rf"indptr\.npy.*of node {node} .*gnndrive verify"):
            Uniform([5]).sample_nodes(np.array([node]), 0, topology)


@pytest.mark.parametrize("bad", [*EXTREMES, 5])
def test_a_seed_out_of_range(bad: int) -> None:
    with pytest.raises(ConfigError, match=rf"seed {bad} .*from 0 to 4"):
        Uniform([2]).sample_nodes(np.array([0, bad]), 0, star(4))


def test_a_graph_without_nodes() -> None:
    topology = Mmap(np.zeros(1, np.int64), np.zeros(0, np.int32), "empty")
    assert len(Uniform([2]).sample_nodes(np.zeros(0, np.int64), 0, topology).node) == 0
    with pytest.raises(ConfigError):
        Uniform([2]).sample_nodes(np.array([0]), 0, topology)


def test_random_damage_gives_a_correct_sample_or_an_error() -> None:
    """For graphs that are overwritten with random numbers."""
    outcomes = {"sample": 0, "error": 0}
    for seed in range(600):
        random = np.random.default_rng(seed)
        indptr, indices = random_graph(30, 6, seed, [np.int32, np.int64][seed % 2])
        for array, odds in ((indptr[1:-1], 0.3), (indices, 0.7)):
            if len(array) and random.random() < odds:
                at = random.integers(0, len(array))
                limits = np.iinfo(array.dtype)
                narrow = random.random() < 0.5
                low, high = (-3, len(indices) + 3) if narrow else (limits.min, limits.max)
                array[at] = random.integers(low, high, endpoint=True)
        seeds = random.integers(0, 30, 4).tolist()
        fanout = random.choice([-1, 2, 40], 3).tolist()
        try:
            topology = Mmap(indptr, indices, "graph")
            sample = Uniform(fanout).sample_nodes(np.array(seeds), seed, topology)
        except StoreError:
            outcomes["error"] += 1
        else:
            assert_contract(sample, indptr, indices, seeds, fanout, replace=False)
            outcomes["sample"] += 1
    assert min(outcomes.values()) > 50


def test_an_error_leaves_the_scratch_memory_usable() -> None:
    sampler, good = Uniform([3]), star(4)
    bad = Mmap(np.array([0, 1]), np.array([7], np.int32), "bad")
    for _ in range(3):
        with pytest.raises(StoreError):
            sampler.sample_nodes(np.array([0]), 0, bad)
        assert len(sampler.sample_nodes(np.array([0]), 0, good).node) == 4


def test_more_edges_than_positions_can_count() -> None:
    for fanout in (2**31, 2**62):
        with pytest.raises(ConfigError, match="lower batch_size"):
            Uniform([fanout], replace=True).sample_nodes(np.array([0]), 0, star(3))
    assert len(Uniform([2**62]).sample_nodes(np.array([0]), 0, star(3)).edge) == 3


@pytest.mark.parametrize(
    ("field", "value"), [("index_bytes", 2), ("nodes", -1), ("edges", -1), ("index_bytes", 0)]
)
def test_c_refuses_a_bad_graph(field: str, value: int) -> None:
    topology = star(3)
    setattr(topology.csc(), field, value)
    with pytest.raises(OSError, match="EINVAL"):
        Uniform([1]).sample_nodes(np.array([0]), 0, topology)


@pytest.mark.parametrize(
    ("fanout", "more"),
    [
        ([2], {"count": -1}), ([2, -2], {}), ([2], {"hops": -1}), ([2], {"node_type_count": 0}),
        ([2], {"edge_type_count": -1}),
    ],
)  # fmt: skip
def test_c_refuses_bad_arguments(fanout: list[int], more: dict[str, int]) -> None:
    assert Scratch().sample(star(3).csc(), [0], fanout, **more) == -errno.EINVAL


def test_a_stopped_sampler_refuses_calls() -> None:
    sampler, topology = Uniform([2]), star(4)
    sampler.sample_nodes(np.array([0]), 0, topology)
    sampler.stop()
    for seeds in (np.array([0]), np.zeros(0, np.int64)):
        with pytest.raises(ClosedError):
            sampler.sample_nodes(seeds, 0, topology)


def test_stop_ends_calls_in_progress() -> None:
    indptr, indices = random_graph(3000, 30, seed=2)
    sampler, topology = Uniform([-1, -1, -1]), Mmap(indptr, indices, "graph")
    started, ended = threading.Barrier(3), []

    def work() -> None:
        started.wait()
        try:
            while True:
                sampler.sample_nodes(np.arange(3000), 0, topology)
        except ClosedError:
            ended.append(True)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    started.wait()
    sampler.stop()
    for thread in threads:
        thread.join(60)
    assert ended == [True, True]


def test_samples_from_memory_mapped_files_equal_those_from_memory(tmp_path: Path) -> None:
    """Also if the pages are not in the page cache; the sampler asks for them ahead."""
    indptr, indices = random_graph(20_000, 40, seed=6, dtype=np.int32)
    for name, array in (("indptr", indptr), ("indices", indices)):
        np.save(tmp_path / f"{name}.npy", array)
    with open(tmp_path / "indices.npy", "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    topology = Mmap(
        np.load(tmp_path / "indptr.npy", mmap_mode="r"),
        np.load(tmp_path / "indices.npy", mmap_mode="r"),
        str(tmp_path),
    )
    assert topology.nbytes == indptr.nbytes
    sampler, seeds = Uniform([10, 10, -1]), np.arange(0, 20_000, 50)
    cold = sampler.sample_nodes(seeds, 1, topology)
    warm = sampler.sample_nodes(seeds, 1, Mmap(indptr, indices, "memory"))
    np.testing.assert_array_equal(cold.node, warm.node)
    np.testing.assert_array_equal(cold.row, warm.row)


def test_arrays_in_memory_count_as_process_memory() -> None:
    indptr, indices = random_graph(100, 3)
    topology = Mmap(indptr, indices, "graph")
    assert topology.nbytes == indptr.nbytes + indices.nbytes
    assert (topology.num_nodes, topology.num_edges) == (100, len(indices))


@pytest.mark.parametrize(
    ("indptr", "indices"),
    [
        (np.zeros(0, np.int64), np.zeros(0, np.int32)),
        (np.array([0, 3]), np.zeros(2, np.int32)),
        (np.array([1, 2]), np.zeros(2, np.int32)),
        (np.array([0, 2], np.int32), np.zeros(2, np.int32)),
        (np.array([0, 2]), np.zeros(2, np.uint32)),
        (np.array([0, 2]), np.zeros(2, ">i4")),
        (np.array([0, 2]), np.zeros((2, 1), np.int32)),
        (np.array([0, 2]), np.zeros(4, np.int32)[::2]),
        (np.array([0, 2]), np.frombuffer(bytes(9), np.int32, 2, offset=1)),
    ],
)
def test_mmap_refuses_arrays_that_are_no_csc_graph(indptr: np.ndarray, indices: np.ndarray) -> None:
    with pytest.raises(StoreError, match="graph"):
        Mmap(indptr, indices, "graph")
