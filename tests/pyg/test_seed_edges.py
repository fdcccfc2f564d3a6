"""Seed edges are left out of the messages of their batch; everything else of it stays."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData

import gnndrive
from gnndrive import ConfigError, LinkNeighborLoader
from tests.pyg.graphs import homogeneous

BUYS, BOUGHT_BY = ("user", "buys", "item"), ("item", "bought_by", "user")
REVERSE = ("item", "rev_buys", "user")


def heterogeneous(seed: int = 0, reverse: tuple[str, str, str] = REVERSE) -> HeteroData:
    """Users and items with few nodes, so that many seed edges are sampled."""
    random, data = torch.Generator().manual_seed(seed), HeteroData()
    data["user"].x = torch.arange(12.0).view(12, 1)
    data["item"].x = torch.arange(9.0).view(9, 1)
    edges = torch.stack([torch.randint(n, (70,), generator=random) for n in (12, 9)])
    data[BUYS].edge_index, data[reverse].edge_index = edges, edges.flip(0)
    return data


def batches(source: Any, label: Any, excluded: Any = False, **more: Any) -> list[Any]:
    """The batches of an epoch, with edges and nodes by their numbers in the graph."""
    with LinkNeighborLoader(
        source, [4, 3], label, batch_size=8, shuffle=False, exclude_seed_edges=excluded, **more
    ) as loader:
        return list(loader)


def check(source: Any, label: Any, excluded: Any, backwards: Any, **more: Any) -> int:
    """That batches are those of a loader without the argument, less what a filter of plain Python
    finds; returns how many edges that was. `backwards`: the reverse type, or False."""
    dropped = 0
    for whole, got in zip(
        batches(source, label, seed=3, **more),
        batches(source, label, excluded, seed=3, **more),
        strict=True,
    ):
        hetero = isinstance(whole, HeteroData)
        type = label[0] if hetero else None
        count = len(whole[type].input_id) if hetero else len(whole.input_id)
        part = whole[type] if hetero else whole
        if "edge_label_index" in part:
            ends = part.edge_label_index[:, :count]
        else:
            of = (whole[type[0]], whole[type[2]]) if hetero else (whole, whole)
            ends = torch.stack([of[0].src_index, of[1].dst_pos_index])
        nodes = [whole[each].n_id for each in type[::2]] if hetero else [whole.n_id] * 2
        seeds = {(int(nodes[0][s]), int(nodes[1][d])) for s, d in ends.T.tolist()}
        for each in whole.edge_types if hetero else [None]:
            before, after = (b[each] if hetero else b for b in (whole, got))
            ids = [whole[n].n_id for n in each[::2]] if hetero else nodes
            unwanted = set[tuple[int, int]]()
            if each == type:
                unwanted |= seeds
            if each == backwards:
                unwanted |= {(d, s) for s, d in seeds}
            keep = [
                (int(ids[0][s]), int(ids[1][d])) not in unwanted
                for s, d in before.edge_index.T.tolist()
            ]
            dropped += keep.count(False)
            assert torch.equal(after.edge_index, before.edge_index[:, keep])
            assert torch.equal(after.e_id, before.e_id[keep])
            if more.get("subgraph_type") != "bidirectional":
                assert sum(after.num_sampled_edges) == sum(keep)
        assert torch.equal(got[type[0]].n_id if hetero else got.n_id, nodes[0])
    return dropped


@pytest.mark.parametrize("more", [{}, {"neg_sampling": "binary"}, {"neg_sampling": "triplet"},
                                  {"disjoint": True}, {"subgraph_type": "bidirectional"}],
                         ids=str)  # fmt: skip
@pytest.mark.parametrize("excluded", [True, "reverse"])
def test_homogeneous(tmp_path: Path, excluded: Any, more: dict[str, Any]) -> None:
    data = homogeneous(20, 120)
    store = gnndrive.from_data(data, tmp_path / "s.gnn")
    backwards = None if excluded == "reverse" else False
    assert check(store, data.edge_index[:, :40], excluded, backwards, **more)


@pytest.mark.parametrize("excluded", [True, "reverse", {BUYS: BOUGHT_BY}, {BOUGHT_BY: BUYS}])
def test_heterogeneous(tmp_path: Path, excluded: Any) -> None:
    reverse = BOUGHT_BY if isinstance(excluded, dict) else REVERSE
    data = heterogeneous(reverse=reverse)
    store = gnndrive.from_data(data, tmp_path / "s.gnn")
    backwards = False if excluded is True else reverse
    label = (BUYS, data[BUYS].edge_index[:, ::2])
    assert check(store, label, excluded, backwards, neg_sampling="binary")


def test_in_every_strategy_that_samples_links(tmp_path: Path) -> None:
    data = homogeneous(60, 400)
    store = gnndrive.from_data(data, tmp_path / "s.gnn")
    label = data.edge_index[:, :40]
    gnndrive.partition(store, parts=2)
    gnndrive.pack(store, [4, 3], edge_label_index=label, batch_size=8, shuffle=False, seed=3,
                  exclude_seed_edges="reverse", epochs=1)  # fmt: skip
    for strategy in ("ali+pg", "marius", "pyg+"):
        assert check(store, label, "reverse", None, strategy=strategy), strategy
    drawn = batches(store, label, "reverse", seed=3)
    packed = batches(store, label, "reverse", seed=3, strategy="diskgnn")
    for one, other in zip(drawn, packed, strict=True):
        assert torch.equal(one.edge_index, other.edge_index)
    with pytest.raises(ConfigError, match="no pack"):
        batches(store, label, True, seed=3, strategy="diskgnn")


@pytest.mark.parametrize("data", [homogeneous(20, 120), heterogeneous()], ids=["Data", "Hetero"])
def test_data_in_memory(data: Data | HeteroData) -> None:
    """And the user's transform sees the sample that is left."""
    hetero = isinstance(data, HeteroData)
    label = (BUYS, data[BUYS].edge_index) if hetero else data.edge_index
    seen = list[int]()

    def count(out: Any) -> Any:
        seen.append(len(out.row[BUYS] if hetero else out.row))
        return out

    torch.manual_seed(0)
    got = batches(data, label, "reverse", transform_sampler_output=count)
    assert seen == [(b[BUYS] if hetero else b).edge_index.size(1) for b in got]
    for batch in got:
        types = (BUYS, REVERSE) if hetero else (None, None)
        seeds = (batch[BUYS] if hetero else batch).edge_label_index
        for type, ends in zip(types, (seeds, seeds.flip(0)), strict=True):
            there = {tuple(e) for e in (batch[type] if hetero else batch).edge_index.T.tolist()}
            assert not there & {tuple(each) for each in ends.T.tolist()}


@pytest.mark.parametrize(("given", "words"), [("both", "reverse"), ({REVERSE: BOUGHT_BY}, "pair"),
                                                ({BUYS: BUYS}, "other direction.*bought_by"),
                                          (3, "reverse"), ("reverse", "rev_buys")])  # fmt: skip
def test_what_it_cannot_be(tmp_path: Path, given: Any, words: str) -> None:
    data = heterogeneous(reverse=BOUGHT_BY)
    for source in (data, gnndrive.from_data(data, tmp_path / "s.gnn")):
        with pytest.raises(ConfigError, match=f"exclude_seed_edges.*{words}"):
            batches(source, (BUYS, data[BUYS].edge_index), given)
