"""split_links: edge types and their reverses, labels, pairs without an edge."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.transforms import RandomLinkSplit

import gnndrive
from gnndrive import ConfigError, LinkNeighborLoader, Store, split_links
from gnndrive.store.link_split import classes
from gnndrive.store.link_split import negatives as drawing
from tests.store.link_split.graphs import (
    EDGES,
    check_against_pyg,
    distinct,
    halves,
    of,
    pairs,
)

# ---- types


def rated(users: int = 30, movies: int = 40) -> HeteroData:
    data = HeteroData()
    data["user"].x, data["movie"].num_nodes = torch.rand(users, 2), movies
    chosen = torch.from_numpy(np.random.default_rng(1).permutation(users * movies)[:500])
    ends = torch.stack([chosen // movies, chosen % movies])
    data["user", "rates", "movie"].edge_index = ends
    data["user", "rates", "movie"].stars = torch.arange(500)
    mixed = torch.randperm(500)
    data["movie", "rev_rates", "user"].edge_index = ends.flip(0)[:, mixed]
    data["movie", "rev_rates", "user"].stars = torch.arange(500)[mixed]
    data["user", "knows", "user"].edge_index = distinct(users, 60)
    return data


RATES, REVERSE = ("user", "rates", "movie"), ("movie", "rev_rates", "user")


def test_reverse_edges_are_in_the_same_part(tmp_path: Path) -> None:
    data = rated()
    store = gnndrive.from_data(data, tmp_path / "s")
    arguments: Any = {"edge_types": RATES, "rev_edge_types": REVERSE, "disjoint_train_ratio": 0.4}
    parts = split_links(store, tmp_path / "p", **arguments)
    expected = RandomLinkSplit(**arguments)(data)
    for mine, theirs in zip(parts, expected, strict=True):
        mine.verify()
        check_against_pyg([mine[RATES]], [theirs[RATES]], False)
        assert pairs(of(mine[RATES])) == {(u, v) for v, u in pairs(of(mine[REVERSE]))}
        assert torch.equal(mine["knows"].edge_index, store["knows"].edge_index)
        by_stars = dict(zip(mine[RATES].stars.tolist(), of(mine[RATES]).T.tolist(), strict=True))
        for star, pair in zip(mine[REVERSE].stars.tolist(), of(mine[REVERSE]).T, strict=True):
            assert by_stars[star] == pair[::-1].tolist()
        assert mine.edge_label_index is mine[RATES].edge_label_index
        loader = LinkNeighborLoader(
            mine, [2, 2], (RATES, mine[RATES].edge_label_index), mine[RATES].edge_label,
            batch_size=50,
        )  # fmt: skip
        with loader:
            assert sum(len(batch[RATES].edge_label) for batch in loader) == len(mine.edge_label)


def test_several_types(tmp_path: Path) -> None:
    store = gnndrive.from_data(rated(), tmp_path / "s")
    given: Any = {"edge_types": ["rates", "knows"], "rev_edge_types": ["rev_rates", None]}
    test = split_links(store, tmp_path / "p", **given).test
    assert len(test[RATES].edge_label) == 200
    assert len(test["knows"].edge_label) == 24
    assert set(test.edge_label_index_dict) == {RATES, ("user", "knows", "user")}
    with pytest.raises(ConfigError, match=r"several edge types have labels: read part\[TYPE\]"):
        _ = test.edge_label
    assert not hasattr(test["rev_rates"], "edge_label")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "edge_types= is not given"),
        ({"edge_types": ["rates", "knows"], "rev_edge_types": [None]}, "give one for each"),
        ({"edge_types": "rates", "rev_edge_types": "knows"}, "joins other types"),
        ({"edge_types": ["rates", "rev_rates"], "rev_edge_types": ["rev_rates", None]}, "twice"),
        ({"edge_types": "knows", "rev_edge_types": "knows"}, "give is_undirected=True"),
        ({"edge_types": "hates"}, "there is no 'hates'"),
    ],
)
def test_types_that_do_not_fit_are_refused(
    tmp_path: Path, given: dict[str, Any], words: str
) -> None:
    store = gnndrive.from_data(rated(), tmp_path / "s")
    with pytest.raises(ConfigError, match=words):
        split_links(store, tmp_path / "p", **given)
    assert sorted(os.listdir(tmp_path)) == ["s"]


# ---- labels


def test_labels_of_edges(data: Data, tmp_path: Path) -> None:
    data.kind = torch.arange(EDGES) % 3
    store = gnndrive.from_data(data, tmp_path / "s")
    kinds = dict(zip(map(tuple, data.edge_index.T.tolist()), data.kind.tolist(), strict=True))
    parts = split_links(store, tmp_path / "p", key="kind", add_negative_train_samples=False)
    for part, more in zip(parts, (0, 1, 1), strict=True):
        assert "kind" not in part.edge_names
        ends, labels = part.edge_label_index.T.tolist(), part.edge_label.tolist()
        expected = [kinds[u, v] + more if (u, v) in kinds else 0 for u, v in ends]
        assert labels == expected
    with pytest.raises(ConfigError, match="edges/weight is float64"):
        split_links(store, tmp_path / "q", key="weight")
    assert sorted(os.listdir(tmp_path)) == ["p", "s"]


def test_ratio_of_pairs_without_an_edge(store: Store, tmp_path: Path) -> None:
    parts = split_links(store, tmp_path / "a", neg_sampling_ratio=3.5, num_val=0.1, num_test=7)
    assert [len(halves(part)[1]) for part in parts] == [3125, 350, 24]
    none = split_links(store, tmp_path / "b", neg_sampling_ratio=0)
    assert all((part.edge_label == 1).all() for part in none)


def test_a_graph_with_too_few_pairs_left(tmp_path: Path) -> None:
    store = gnndrive.from_data(Data(edge_index=distinct(8, 40), num_nodes=8), tmp_path / "s")
    with pytest.warns(UserWarning, match="because the graph has no more"):
        parts = split_links(store, tmp_path / "p", num_val=0.25, num_test=0.25)
    whole = pairs(of(store))
    empty = {(u, v) for u in range(8) for v in range(8) if u != v} - whole
    assert set.union(*(halves(part)[1] for part in parts)) == empty


def test_pairs_without_an_edge_are_uniform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classes, "CHUNK", 20)  # several chunks, one of them of one popular node
    edges = torch.cat([distinct(20, 60), torch.stack([torch.arange(12), torch.full((12,), 3)])], 1)
    store = gnndrive.from_data(Data(edge_index=edges.unique(dim=1), num_nodes=20), tmp_path / "s")
    whole = pairs(edges)
    free = [(u, v) for u in range(20) for v in range(20) if u != v and (u, v) not in whole]
    for enumerate_up_to in (1 << 20, 0):
        monkeypatch.setattr(drawing, "CHUNK", enumerate_up_to)
        counts = dict.fromkeys(free, 0)
        random = np.random.default_rng(1)
        for _ in range(400):
            drawn = list(drawing.negatives(store.edges(), [30, 20], random))
            for place, total in enumerate((30, 20)):
                source, target = (
                    np.concatenate([each[place][at] for each in drawn]) for at in (0, 1)
                )
                assert len(source) == total
                for pair in zip(source.tolist(), target.tolist(), strict=True):
                    counts[pair] += 1
        expected = 400 * 50 / len(free)
        assert max(abs(count - expected) for count in counts.values()) < 5 * expected**0.5
