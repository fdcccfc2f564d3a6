"""The hot nodes are those with the most uses, in bands, and the same in chunks of any length."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from gnndrive.store.packed import hot
from gnndrive.store.packed.hot import BANDS, choose_hot


def counts_of(seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    most = int(random.choice([1, 3, 20, 1000]))
    counts = most * random.random(int(random.integers(1, 300))) ** random.integers(1, 8)
    return counts.round().astype(np.uint32)


@pytest.mark.parametrize("seed", range(60))
def test_it_takes_the_nodes_with_the_most_uses_and_of_equals_the_lowest_ids(seed, monkeypatch):
    counts = counts_of(seed)
    slots = seed * len(counts) // 50
    monkeypatch.setattr(hot, "_CHUNK", 1 + 7 * (seed % 10))
    found = choose_hot(counts, slots)
    ranked = sorted(np.flatnonzero(counts).tolist(), key=lambda node: (-int(counts[node]), node))
    assert sorted(found.node.tolist()) == sorted(ranked[:slots])
    assert found.uses == counts[ranked[:slots]].sum()


@pytest.mark.parametrize("seed", range(20))
def test_a_hotter_band_comes_first_and_a_band_lies_by_id(seed, monkeypatch):
    counts = counts_of(seed)
    monkeypatch.setattr(hot, "_CHUNK", 11)
    found = choose_hot(counts, 3 * len(counts) // 4)
    ends = found.band_ends.tolist()
    bands = [found.node[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    assert len(bands) == BANDS
    assert ends[-1] == len(found.node)
    assert all((np.diff(band) > 0).all() for band in bands)
    assert found.band_uses.tolist() == [int(counts[band].sum()) for band in bands]
    used = [counts[band] for band in bands if len(band)]
    assert all(hotter.min() > colder.max() for hotter, colder in pairwise(used))


def test_bands_are_about_equally_long():
    counts = np.random.default_rng(0).permutation(np.arange(6400, dtype=np.uint32))
    found = choose_hot(counts, 3200)
    assert np.diff(found.band_ends, prepend=0).tolist() == [100] * BANDS


def test_without_slots_or_uses_no_node_is_hot():
    for found in (
        choose_hot(np.ones(5, np.uint32), 0),
        choose_hot(np.zeros(5, np.uint32), 3),
        choose_hot(np.empty(0, np.uint32), 3),
    ):
        assert found.node.tolist() == []
        assert found.uses == 0
        assert found.band_ends.tolist() == [0] * BANDS


def test_more_slots_than_used_nodes_are_not_filled():
    assert choose_hot(np.array([0, 2, 0, 1], np.uint32), 4).node.tolist() == [1, 3]


def test_ids_take_as_many_bytes_as_the_graph_needs():
    assert choose_hot(np.ones(3, np.uint32), 2).node.dtype == np.int32
