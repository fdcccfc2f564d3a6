"""splits=(0.6, 0.2, 0.2): a random split, in each importer that takes splits."""

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

import gnndrive
from gnndrive import ConfigError
from gnndrive.store.importers import from_dataset
from gnndrive.store.importers.splits import RandomSplit, as_random, random_split

NODES = 10
LABELS = torch.tensor([0, 1, -1, 1, 0, 1, 1, -1, 0, 1])
KNOWN = np.flatnonzero(LABELS.numpy() >= 0)


@pytest.fixture(name="data")
def fixture_data() -> Data:
    edges = torch.arange(2 * NODES).view(2, NODES) % NODES
    return Data(x=torch.zeros(NODES, 1), edge_index=edges, y=LABELS)


def test_two_or_three_shares_are_a_random_split():
    assert as_random((0.6, 0.2, 0.2)) == RandomSplit(0.6, 0.2, 0.2, 0)
    assert as_random((0.5, 0.25)) == RandomSplit(0.5, 0.25, 0.0, 0)
    assert as_random((1, 0, 0)) == RandomSplit(1, 0, 0, 0)
    for other in (None, (), ("random", 0.6, 0.2, 0.2, 0), ("column", "1", "2"), {"train": [1]}):
        assert as_random(other) == other
    for wrong in ((60, 20, 20), (0.6,), (0.4, 0.2, 0.2, 0.2), (6, 2)):
        with pytest.raises(ConfigError, match="for numbers of nodes, draw ids and give them"):
            as_random(wrong)


def test_importers_draw_from_the_labelled_nodes(data, tmp_path):
    expected = random_split(KNOWN, RandomSplit(0.5, 0.25, 0.25))
    table = tmp_path / "nodes.csv"
    rows = [f"{node},{'' if label < 0 else int(label)}" for node, label in enumerate(LABELS)]
    table.write_text("\n".join(["id,y", *rows]))
    pairs = tmp_path / "edges.csv"
    pairs.write_text("\n".join(["a,b", *(f"{a},{b}" for a, b in data.edge_index.T.tolist())]))
    shares = (0.5, 0.25, 0.25)
    stores = (
        gnndrive.from_data(data, tmp_path / "data.gnn", splits=shares),
        gnndrive.from_edges(
            pairs, tmp_path / "edges.gnn", header=True, labels=table, splits=shares
        ),
        gnndrive.from_tables(
            tmp_path / "tables.gnn", nodes=f"{table}:id", edges=f"{pairs}:a,b", splits=shares
        ),
    )
    for store in stores:
        assert {name: store.split(name).tolist() for name in store.split_names} == {
            name: ids.tolist() for name, ids in expected.items()
        }


def test_without_labels_all_nodes_are_drawn_from(data, tmp_path):
    del data.y
    store = gnndrive.from_data(data, tmp_path / "data.gnn", splits=(0.5, 0.5))
    assert sorted([*store.split("train").tolist(), *store.split("val").tolist()]) == [*range(NODES)]


def test_masks_stay_and_the_rest_is_divided(data, tmp_path):
    data.train_mask = torch.arange(NODES) < 4
    file, ids = tmp_path / "data.pt", tmp_path / "val.txt"
    torch.save(data, file)
    hetero = HeteroData()
    hetero["a"].num_nodes = hetero["b"].num_nodes = NODES
    hetero["a"].y, hetero["a"].train_mask = data.y, data.train_mask
    hetero["a", "to", "b"].edge_index = data.edge_index
    for number, (graph, type) in enumerate(((data, None), (hetero, "a"))):
        torch.save(graph, file)
        store = from_dataset(file, tmp_path / f"{number}.gnn", splits=(0, 0.5, 0.5))
        nodes = store if type is None else store[type]
        assert nodes.split("train").tolist() == [0, 1, 2, 3]
        val, test = (nodes.split(name).tolist() for name in ("val", "test"))
        assert (sorted(val + test), len(val)) == ([4, 5, 6, 8, 9], 2)
    torch.save(data, file)
    ids.write_text("5\n7\n")
    store = from_dataset(file, tmp_path / "ids.gnn", splits={"val": ids})
    assert (store.split_names, store.split("val").tolist()) == (("val",), [5, 7])
    refusal = r"has train_mask, .* share 0, as splits=\(0, 0.5, 0.5\)"
    with pytest.raises(ConfigError, match=refusal):
        from_dataset(file, tmp_path / "a.gnn", splits=(0.6, 0.2, 0.2))
    data.val_mask, data.test_mask = ~data.train_mask, ~data.train_mask
    with pytest.raises(ConfigError, match=r"leave out splits=, because it has all; or"):
        gnndrive.from_data(data, tmp_path / "a.gnn", splits=(0.6, 0.2, 0.2))


def test_what_is_no_split_is_refused(data, tmp_path):
    with pytest.raises(ConfigError, match="for numbers of nodes"):
        gnndrive.from_data(data, tmp_path / "a.gnn", splits=(6, 2, 2))
    with pytest.raises(ConfigError, match=r"give shares, as \(0.6, 0.2, 0.2\), or ids by name"):
        gnndrive.from_data(data, tmp_path / "a.gnn", splits="random")
    hetero = HeteroData()
    hetero["a"].x = torch.zeros(NODES, 1)
    hetero["a", "to", "a"].edge_index = data.edge_index
    with pytest.raises(
        ConfigError, match="no type of nodes has labels y to draw from; splits of a"
    ):
        gnndrive.from_data(hetero, tmp_path / "a.gnn", splits=(0.6, 0.2, 0.2))
    assert not [*tmp_path.iterdir()]
