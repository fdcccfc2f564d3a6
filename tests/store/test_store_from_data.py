"""from_data: a PyG Data becomes a store with the same edges and attributes."""

import copy

import numpy as np
import pytest
import scipy.sparse
import torch
from torch_geometric.data import Data, HeteroData, InMemoryDataset
from torch_geometric.data.storage import EdgeStorage
from torch_geometric.utils import to_undirected as pyg_to_undirected

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.store.importers import (
    csc_from_edges,
    ends,
    from_data,
    from_dataset,
    from_pt,
    to_undirected,
)
from gnndrive.store.writer import write_store
from tests.soak import product
from tests.store.conftest import compressed, refused, same_array


def make_data() -> Data:
    torch.manual_seed(0)
    nodes, edge_index = torch.arange(50), torch.randint(0, 50, (2, 300))
    masks = {"train_mask": nodes < 30, "val_mask": nodes // 10 == 3, "test_mask": nodes >= 40}
    return Data(x=torch.randn(50, 5), edge_index=edge_index, **masks)


def test_what_is_left_out_is_named(tmp_path):
    data = make_data()
    data.titles, data.object, data.many = ["of a node"] * 50, object(), torch.zeros(70_000)
    data.adj_t = torch.sparse_coo_tensor(data.edge_index, torch.ones(300), (50, 50))
    with pytest.warns(UserWarning, match="left out: adj_t, many, object, titles"):
        assert "many" not in from_data(data, tmp_path / "s").node_names
    data = make_data()
    data.train_mask = torch.zeros(50, 10, dtype=torch.bool)
    with pytest.warns(UserWarning, match=r"train_mask holds 10 splits .*data.train_mask\[:, 0\]"):
        assert from_data(data, tmp_path / "t").split_names == ("val", "test")


def make_hetero() -> HeteroData:
    """The nodes of `make_data` as "a" and its edges, and as many edges from "a" to 3 of "b"."""
    data, hetero = make_data(), HeteroData()
    hetero["a"].x, hetero["a"].train_mask, hetero["b"].num_nodes = data.x, data.train_mask, 3
    hetero["a", "to", "a"].edge_index = data.edge_index
    hetero["a", "in", "b"].edge_index = data.edge_index % torch.tensor([[50], [3]])
    return hetero


def test_a_file_that_torch_saved_becomes_the_same_store(tmp_path, monkeypatch):
    file, data, hetero, mapped = tmp_path / "data.pt", make_data(), make_hetero(), []

    def load(*given, load=torch.load, **how):
        mapped.append(how["mmap"])
        return load(*given, **how)

    monkeypatch.setattr(torch, "load", load)
    slices, legacy = {"x": torch.tensor([0, 50])}, {"_use_new_zipfile_serialization": False}
    for number, (graph, content, how) in enumerate([
        (data, data, {}),
        (data, data, legacy),
        (data, (data.to_dict(), None, Data), {}),
        (data, (data, slices), {}),
        (hetero, hetero, {}),
        (hetero, (hetero.to_dict(), None, HeteroData), {}),
        (hetero, (hetero.to_dict(), {"a": slices}), {}),
    ]):  # fmt: skip
        torch.save(content, file, **how)
        dtype = "float16" if number else None
        # Sort in memory, and with DuckDB.
        monkeypatch.setattr(ends, "SORTING_BYTES", 1 << 40 if number % 2 else 40)
        made = from_dataset(file, tmp_path / f"{number}", dtype=dtype)
        wanted = from_data(copy.copy(graph), tmp_path / "wanted", if_exists="replace")
        assert made.info.types == wanted.info.types
        assert made.info.arrays.keys() == wanted.info.arrays.keys()
        for name in made.info.arrays:
            as_it_is = dtype is None or not name.endswith("/x")
            same_array(
                made, name, wanted.info.arrays[name].dtype if as_it_is else dtype,
                wanted.array(name).astype(made.array(name).dtype),
            )  # fmt: skip
    assert mapped == [True, False, *[True] * 5]
    assert EdgeStorage not in torch.serialization.get_safe_globals()
    torch.save(data, file)
    made = from_dataset(file, tmp_path / "both", undirected=True)
    assert made.num_edges == pyg_to_undirected(data.edge_index).shape[1]


class Other:
    """A class of the file's own; `ran` counts how often a file made one."""

    ran = 0

    def __setstate__(self, state):
        Other.ran += 1


def test_a_file_of_something_else_is_refused(tmp_path):
    file, data, numpy, edge, used = tmp_path / "d.pt", *(make_data() for _ in range(4))
    wide, sparse = make_data(), make_data()
    wide.x = wide.x[:, :1].expand(50, 10**9)
    edges = torch.zeros(2, 1, dtype=torch.int64).expand(2, 99)
    sparse.adj_t = torch.sparse_coo_tensor(edges, torch.ones(99), (50, 50))
    data.other, data.other.a, numpy.z, edge.edge_index[0, 9] = Other(), 1, np.arange(50), 50
    several = InMemoryDataset.collate([make_data(), make_data()])
    assert used.is_node_attr("x")  # which PyG remembers, in a file too
    for content, match in (
        (used, r"holds a \S+\.AttrType, .*torch\.save\(copy\.copy\(data\), file\) leaves it out"),
        (data, r"d\.pt holds a tests\.store\.test_store_from_data\.Other, .*open it yourself"),
        (numpy, r"holds a numpy\._?core\.multiarray\._reconstruct"),
        ([make_data()] * 2, r"d\.pt holds 2 graphs, .*torch\.save\(dataset\[0\], file\)"),
        ((several[0].to_dict(), several[1], Data), "holds 2 graphs"),
        ({"w": torch.ones(2)}, "holds a dict, not a torch_geometric Data"),
        ((make_data(), {"train": torch.arange(3)}), "holds a tuple, not a torch_geometric Data"),
        ((make_hetero(), {"a": {"x": torch.arange(3)}}), "holds 2 graphs"),
        ((make_data(), torch.arange(3)), "holds a tuple"),
        (("a", "b", torch.dtype), "holds a "),
        (({"_global_store": 1}, None, HeteroData), "its state is damaged"),
        (edge, r"d\.pt, edge 9 \(from 0\): node 50, but there are 50 nodes"),
        (wide, r"d\.pt: 'x' is a tensor \[50, 1000000000\] with more elements .*clone"),
        (sparse, r"d\.pt: 'adj_t' is a tensor .*save tensor\.clone\(\)"),
        (b"x,y\n", r"d\.pt is not what torch\.save writes"),
        (b"", r"d\.pt is not what torch\.save writes"),
    ):
        file.write_bytes(content) if isinstance(content, bytes) else torch.save(content, file)
        with refused(tmp_path, match, StoreError):
            from_dataset(file, tmp_path / "s")
    for nodes, match in ((4 * 10**9, "more than memory=: give 36GB or more"), (-5, "is -5")):
        torch.save(Data(num_nodes=nodes, edge_index=edge.edge_index), file)
        with refused(tmp_path, match, ConfigError):
            from_dataset(file, tmp_path / "s")
    torch.save(make_data(), file)
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"data.data\nData\n", b"\x1bata.data\nData\n"))
    with pytest.raises(StoreError, match=r"d\.pt is not what .*\(it is damaged\)") as error:
        from_dataset(file, tmp_path / "s")
    assert str(error.value).isprintable()
    for damaged in (whole[:-300], whole[:-26] + b"\xff" * 4 + whole[-22:]):
        file.write_bytes(damaged)
        with refused(tmp_path, "d.pt is not what torch.save writes", StoreError):
            from_dataset(file, tmp_path / "s")
    file.write_bytes(compressed(whole))
    with refused(tmp_path, r"d\.pt is not what .*its tensors are compressed", StoreError):
        from_dataset(file, tmp_path / "s")
    with refused(tmp_path, r"gone\.pt cannot be read: No such file", StoreError):
        from_dataset(tmp_path / "gone.pt", tmp_path / "s")
    assert Other.ran == 0


def test_masks_of_zeros_and_ones_are_splits(tmp_path):
    data = make_data()
    masks = data.train_mask, data.val_mask
    data.train_mask, data.val_mask = masks[0].to(torch.uint8), masks[1].long()
    data.test_mask = torch.arange(50)
    with pytest.warns(UserWarning, match=r"test_mask is int64 \[50\] and is not made a split"):
        store = from_data(data, tmp_path / "s")
    assert store.split_names == ("train", "val")
    for name, mask in zip(store.split_names, masks, strict=True):
        assert torch.equal(store.split(name), mask.nonzero().view(-1))
    assert store.train_mask.dtype == torch.uint8


def test_values_that_torch_negates_or_conjugates_when_they_are_read(tmp_path):
    data, complex = make_data(), torch.randn(50, 2, dtype=torch.complex64)
    data.z = complex.conj().imag
    assert data.z.is_neg()
    assert from_data(data, tmp_path / "s").z.tolist() == (-complex.imag).tolist()


def test_refusals(tmp_path):
    meta, edge, imaginary = make_data(), make_data(), make_data()
    meta.x, edge.edge_index[0, 9] = torch.empty(50, 3, device="meta"), 50
    imaginary.z = torch.zeros(50, dtype=torch.complex64)
    for data, match in (
        (HeteroData(), "there are no node types"),
        ({}, "torch_geometric Data or HeteroData, not a dict"),
        (Data(x=torch.ones(3, 1)), "no edge_index"),
        (imaginary, r"nodes/z: .*complex64"),
        (edge, "edge 9 names 50, but there are 50 nodes"),
        (meta, "nodes/x is on the device 'meta'"),
    ):
        with refused(tmp_path, match):
            from_data(data, tmp_path / "s")
    for dtype in (torch.float32, torch.bool, torch.complex64):
        edge.edge_index = edge.edge_index.to(dtype)
        torch.save(copy.copy(edge), tmp_path / "d.pt")
        for make, source in ((from_data, edge), (from_pt, tmp_path / "d.pt")):
            with refused(tmp_path, rf"data\.edge_index holds {dtype}: give whole numbers"):
                make(source, tmp_path / "s", undirected=True)


class SparseTensor:
    """As much of torch_sparse's class as PyG and the importer look at."""

    def size(self, dim: int) -> int:
        return (50, 5)[dim]

    def to_torch_sparse_coo_tensor(self) -> torch.Tensor:
        return torch.zeros(50, 5).to_sparse()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_sparse_attribute_is_refused(tmp_path):
    for value in (
        torch.eye(50).to_sparse(),
        torch.nested.nested_tensor([torch.ones(2)] * 50),
        scipy.sparse.eye(50, format="csr"),
        SparseTensor(),
    ):
        data, hetero = make_data(), HeteroData()
        data.z = value
        hetero["a"].x, hetero["a"].num_nodes = value, 50
        hetero["a", "to", "a"].edge_index = torch.zeros(2, 3, dtype=torch.long)
        for source, match in ((data, r"data\.z is sparse, .* call \.to_dense\(\)"),
                              (hetero, "x of a is sparse")):  # fmt: skip
            with refused(tmp_path, match):
                from_data(source, tmp_path / "s")
        with refused(tmp_path, r"nodes/z is (sparse|object)"):
            write_store(tmp_path / "s", indptr=[0] * 51, indices=[], nodes={"z": value})


@product("dtype", [np.int32, np.int64, np.uint8, np.uint64])
def test_csc_is_stable(dtype, seeds):
    for seed in seeds(1):
        rng = np.random.default_rng(seed)
        src, dst = rng.integers(0, 30, (2, 500)).astype(dtype)
        indptr, indices, edge_id = csc_from_edges(src, dst, 31)
        assert np.array_equal(edge_id, np.argsort(dst, kind="stable"))
        assert np.array_equal(indices, src[edge_id])
        assert np.array_equal(np.diff(indptr), np.bincount(dst.astype(int), minlength=31))
        if src.dtype == np.int64:
            mine = np.stack(to_undirected(src, dst, 31))
            ends = torch.from_numpy(np.stack([src, dst]))
            assert np.array_equal(mine, pyg_to_undirected(ends, num_nodes=31).numpy())
    indptr, indices, edge_id = csc_from_edges(src[:0], dst[:0], 3)
    assert (indptr.tolist(), len(indices), len(edge_id)) == ([0, 0, 0, 0], 0, 0)
