"""A sparse adj_t or adj becomes edges, entry by entry, for importers and for loaders in memory."""

import copy

import numpy as np
import pytest
import scipy.sparse
import torch
import torch_geometric
from torch_geometric.data import Data, HeteroData
from torch_geometric.transforms import ToSparseTensor
from torch_geometric.utils import to_undirected

from gnndrive import LinkNeighborLoader, NeighborLoader
from gnndrive.common.errors import ConfigError
from gnndrive.store.adjacency import with_edge_index
from gnndrive.store.importers import from_data, from_pt, open_or_make
from tests.store.conftest import edges_of, refused

SIZE = 7, 5  # of targets, of sources


class SparseTensor:
    """As much of torch_sparse's class as gnndrive looks at; it sorts by row."""

    def __init__(self, row, col, value, sizes) -> None:
        self._entries, self._sizes = (row, col, value), sizes

    def size(self, dim: int) -> int:
        return self._sizes[dim]

    def coo(self):
        return self._entries

    def csr(self):
        raise AssertionError("its entries are those of coo()")

    to_torch_sparse_coo_tensor = csr


def entries(seed: int, size=SIZE, columns=()):
    """Rows, columns and values [entries, *columns] in random order; some entries are parallel."""
    generator = torch.Generator().manual_seed(seed)
    row, col = (torch.randint(n, (40,), generator=generator) for n in size)
    return row, col, torch.rand(40, *columns, generator=generator)


def compressed(major, minor, value, count):
    """The pointers, other ends and values of entries, sorted by `major` alone."""
    order = torch.argsort(major, stable=True)
    pointers = torch.zeros(count + 1, dtype=torch.int64)
    pointers[1:] = torch.bincount(major, minlength=count).cumsum(0)
    return order, (pointers, minor[order], value[order])


def matrices(row, col, value, size=SIZE):
    """The entries as each kind of matrix, with the order that they have in it."""
    shape = (*size, *value.shape[1:])
    by_row, csr = compressed(row, col, value, size[0])
    by_column, csc = compressed(col, row, value, size[1])
    yield slice(None), torch.sparse_coo_tensor(torch.stack([row, col]), value, shape)
    yield by_row, torch.sparse_csr_tensor(*csr, shape)
    yield by_column, torch.sparse_csc_tensor(*csc, shape)
    yield by_row, SparseTensor(row[by_row], col[by_row], value[by_row], size)


@pytest.mark.parametrize("columns", [(), (3,)])
@pytest.mark.parametrize("name", ["adj", "adj_t"])
def test_each_entry_is_an_edge_in_its_place(name, columns, seeds, monkeypatch):
    row, col, value = entries(next(iter(seeds(1))), columns=columns)
    target, source = (row, col) if name == "adj_t" else (col, row)
    for order, matrix in matrices(row, col, value):
        data = HeteroData()
        data["a", "to", "b"][name] = matrix
        made = with_edge_index(data)
        assert name in data["a", "to", "b"], "the user's graph was changed"
        edges = made["a", "to", "b"]
        assert torch.equal(edges.edge_index, torch.stack([source[order], target[order]]))
        assert torch.equal(edges["edge_attr" if columns else "edge_weight"], value[order])
        assert set(edges.keys()) == {"edge_index", "edge_attr" if columns else "edge_weight"}
        sizes = SIZE[::-1] if name == "adj_t" else SIZE
        assert (made["a"].num_nodes, made["b"].num_nodes) == sizes
    monkeypatch.setattr(torch_geometric.typing, "SparseTensor", SparseTensor)
    assert with_edge_index(data, in_memory=True) is data, "PyG's loaders take it as it is"
    without = Data(**{name: SparseTensor(row % 5, col, None, (5, 5))}, x=torch.ones(5, 1))
    assert set(with_edge_index(without).keys()) == {"x", "edge_index"}
    assert with_edge_index(made) is made


def test_the_store_is_that_of_the_edges(tmp_path):
    row, col, value = entries(1, (5, 5))
    plain = Data(edge_index=torch.stack([col, row]), edge_weight=value, y=torch.arange(40))
    plain.num_nodes = 5
    matrix = torch.sparse_coo_tensor(torch.stack([row, col]), value, (5, 5))
    data = Data(adj_t=matrix, y=torch.arange(40))
    huge = HeteroData()
    huge["a", "to", "b"].adj_t = torch.sparse_coo_tensor([[0], [1]], [1.0], (4 * 10**9, 5))
    torch.save(huge, tmp_path / "data.pt")
    with refused(tmp_path, "4,000,000,000 nodes alone are more than memory="):
        from_pt(tmp_path / "data.pt", tmp_path / "p")
    torch.save(data, tmp_path / "data.pt")
    wanted = from_data(plain, tmp_path / "w")
    for made in (
        from_data(data, tmp_path / "s"),
        open_or_make(tmp_path / "s", data),  # the same graph
        from_pt(tmp_path / "data.pt", tmp_path / "p"),
    ):
        assert made.info.arrays == wanted.info.arrays
    both = from_data(data, tmp_path / "u", undirected=True)
    assert np.array_equal(edges_of(both), to_undirected(plain.edge_index).numpy())


def test_values_have_a_name_of_their_own():
    data = Data(edge_index=torch.randint(5, (2, 20)), edge_weight=torch.rand(20), num_nodes=5)
    data.edge_index = data.edge_index.unique(dim=1)
    data.edge_weight = data.edge_weight[: data.num_edges]
    sparse = ToSparseTensor(attr=None)(copy.copy(data))  # has ones as values
    assert torch.equal(with_edge_index(sparse).edge_weight, sparse.edge_weight)
    sparse.adj_t = sparse.adj_t * 2
    with pytest.raises(ConfigError, match=r"data has edge_weight, and the values of data\.adj_t"):
        with_edge_index(sparse)


def test_what_is_no_adjacency_is_refused(tmp_path):
    row, col, value = entries(2, (5, 5))
    at, ones = torch.stack([row, col]), torch.ones(5, 1)
    blocks = torch.eye(4).to_sparse_bsr(2)
    beyond = SparseTensor(torch.tensor([0, 5]), torch.tensor([0, 1]), None, (5, 5))
    falls, none = (
        torch.sparse_csr_tensor(each, [0, 1], [1.0, 1], (5, 5), check_invariants=False)
        for each in ([0, 3, 1, 2, 2, 2], [0])
    )
    for adj_t, match in (
        (torch.sparse_coo_tensor(at, value, (5, 6)), r"data\.adj_t joins 6 nodes with 5"),
        (
            torch.sparse_coo_tensor(at, value, (6, 6)),
            r"data\.adj_t has 6 rows or columns for 5 node",
        ),
        (blocks, r"data\.adj_t is torch\.sparse_bsr \[4, 4\]: .*\.to_sparse_csr\(\)"),
        (torch.eye(4).expand(2, 4, 4).to_sparse_csr(), r"torch\.sparse_csr \[2, 4, 4\]"),
        (torch.ones(2, 2, 2).to_sparse(), r"torch\.sparse_coo \[2, 2, 2\]"),
        (beyond, r"edge 1 names 5, but there are 5 nodes"),
        (falls, r"data\.adj_t has index pointers that do not fit"),
        (none, r"data\.adj_t has index pointers that do not fit"),
        (torch.eye(5), r"data\.adj_t is torch\.strided \[5, 5\]: .*\.to_sparse_csr\(\)"),
        (scipy.sparse.eye(5, format="csr"), r"is csr_matrix \[5, 5\]: .* edge_index"),
    ):
        with refused(tmp_path, match):
            from_data(Data(x=ones, adj_t=adj_t), tmp_path / "s")


@pytest.mark.parametrize("loader", [NeighborLoader, LinkNeighborLoader])
def test_a_loader_in_memory_takes_it(loader):
    row, col, value = entries(3, (30, 30))
    plain = Data(x=torch.rand(30, 2), edge_index=torch.stack([col, row]), edge_weight=value)
    matrix = torch.sparse_coo_tensor(torch.stack([row, col]), value, (30, 30))
    data, hetero, both = Data(x=plain.x, adj_t=matrix), HeteroData(), copy.copy(plain)
    hetero["a"].x, hetero["a", "to", "a"].adj_t = plain.x, matrix
    arguments = {"num_neighbors": [2, 2], "batch_size": 8, "weight_attr": "edge_weight"}

    def batches(graph, **more):
        torch.manual_seed(0)
        return list(loader(graph, **arguments, **more))

    for got, want in zip(batches(data), batches(plain), strict=True):
        assert got.to_dict().keys() == want.to_dict().keys()
        for name in ("x", "edge_index", "edge_weight", "n_id", "e_id"):
            assert torch.equal(got[name], want[name])
    seeds = "a" if loader is NeighborLoader else ("a", "to", "a")
    seeds = {"input_nodes" if loader is NeighborLoader else "edge_label_index": seeds}
    for batch in batches(hetero, **seeds):
        edges = batch["a", "to", "a"]
        assert torch.equal(edges.edge_weight, value[edges.e_id])
    for other, why in (matrix, "edge_index has"), ("a road", "PyG's .* rename it"):
        both.adj_t = other
        with pytest.warns(UserWarning, match=f"adj_t is left out of batches, because {why}"):
            found = batches(both)
        assert "adj_t" not in found[0]
