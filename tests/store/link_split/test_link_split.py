"""split_links: the invariants of PyG's RandomLinkSplit, on disk; opened again; within memory."""

import json
import os
import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.transforms import RandomLinkSplit

import gnndrive
from gnndrive import ConfigError, LinkNeighborLoader, StoreError, open_links, split_links
from gnndrive.common.memory import parse_size
from gnndrive.store.importers import to_undirected
from gnndrive.store.link_split import classes
from gnndrive.store.link_split import parts as drawing
from tests.store.conftest import edges_of, left, refused

Pairs = set[tuple[int, int]]
NODES, EDGES = 120, 1000


def pairs(edge_index: Any) -> Pairs:
    return set(map(tuple, np.asarray(edge_index).T.tolist()))


def distinct(nodes: int, edges: int, seed: int = 0) -> torch.Tensor:
    """Distinct edges in random order."""
    chosen = np.random.default_rng(seed).permutation(nodes * nodes)[:edges]
    return torch.from_numpy(np.stack([chosen // nodes, chosen % nodes]))


def graph(edge_index: torch.Tensor) -> Data:
    count = edge_index.shape[1]
    return Data(
        x=torch.arange(2 * NODES).view(-1, 2).float(),
        y=torch.arange(NODES) % 3,
        train_mask=torch.arange(NODES) < 50,
        edge_index=edge_index,
        weight=torch.arange(count).double(),
        code=(edge_index[0] * NODES + edge_index[1]).int().view(-1, 1).repeat(1, 2),
        half=torch.arange(count).bfloat16(),
        title="of the graph",
    )


def halves(view: Any) -> tuple[Pairs, Pairs]:
    """Labelled edges, and pairs without an edge."""
    index, label = view.edge_label_index, view.edge_label
    return pairs(index[:, label > 0]), pairs(index[:, label == 0])


def halves_count(part: Any) -> int:
    return int((part.edge_label > 0).sum())


def check_against_pyg(parts: Any, expected: Any, undirected: bool) -> None:
    for mine, theirs in zip(parts, expected, strict=True):
        assert mine.edge_label_index.shape == theirs.edge_label_index.shape
        assert mine.edge_label_index.dtype == torch.int64
        assert mine.edge_label.dtype == theirs.edge_label.dtype
        assert torch.equal(mine.edge_label.long().bincount(), theirs.edge_label.long().bincount())
        if not undirected:  # PyG doubles loops
            assert mine.num_edges == theirs.num_edges


@pytest.fixture
def data() -> Data:
    return graph(distinct(NODES, EDGES))


@pytest.fixture
def store(data, tmp_path):
    return gnndrive.from_data(data, tmp_path / "s.gnn")


# ---- what the parts hold


@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize("disjoint", [0.0, 0.3])
def test_the_parts_are_as_in_pyg(tmp_path, undirected, disjoint, seeds):
    for seed in seeds(1):
        data = graph(distinct(NODES, EDGES, seed))
        if undirected:
            ends = to_undirected(*data.edge_index.numpy(), NODES)
            data = graph(torch.from_numpy(np.stack(ends)))
        store = gnndrive.from_data(data, tmp_path / f"{seed}.gnn")
        before = {file: file.read_bytes() for file in store.path.rglob("*.*") if file.is_file()}
        arguments: Any = {"is_undirected": undirected, "disjoint_train_ratio": disjoint}
        parts = split_links(store, seed=seed, **arguments)
        assert parts.train.path == tmp_path / f"{seed}-links.gnn"
        check_against_pyg(parts, RandomLinkSplit(**arguments)(data), undirected)
        whole = pairs(data.edge_index)
        messages = [pairs(edges_of(part)) for part in parts]
        labelled, empty = zip(*map(halves, parts), strict=True)
        # Messages grow from part to part, and no part's messages hold what a later part predicts.
        assert messages[0] <= messages[1] <= messages[2] <= whole
        assert not labelled[1] & messages[1]
        assert not labelled[2] & messages[2]
        assert not labelled[0] & labelled[1]
        assert not (labelled[0] | labelled[1]) & labelled[2]
        assert (messages[0] == messages[1]) == (disjoint == 0)
        assert bool(labelled[0] & messages[0]) == (disjoint == 0)
        assert labelled[1] <= messages[2]
        back = {(v, u) for u, v in labelled[2]} if undirected else set()
        assert messages[2] | labelled[2] | back == whole
        assert not back & messages[2]
        if undirected:
            assert all(u <= v for each in labelled for u, v in each)
            assert all({(v, u) for u, v in each} == each for each in messages)
        # Pairs without an edge: none is an edge anywhere, a loop, or in two parts.
        assert not any(each & whole for each in empty)
        assert all(u != v for each in empty for u, v in each)
        assert len(set.union(*empty)) == sum(map(len, empty))
        assert before == {file: file.read_bytes() for file in before}


def test_edges_keep_their_attributes_and_order(store):
    for part in split_links(store, disjoint_train_ratio=0.5):
        part.verify()
        source, target = edges_of(part)
        code = part.tensor("edges/code")
        assert torch.equal(code[:, 1], torch.from_numpy(source * NODES + target).int())
        weight = part.tensor("edges/weight").long()
        assert torch.equal(store.edge_index[:, weight], torch.from_numpy(edges_of(part)))
        assert (weight.diff() > 0).all()
        assert torch.equal(part.tensor("edges/half"), store.tensor("edges/half")[weight])
        assert torch.equal(part.tensor("x"), store.tensor("x"))
        assert torch.equal(part.split("train"), store.split("train"))
        assert part.num_classes == store.num_classes == 3
        assert part.title == "of the graph"


def test_nodes_are_shared_and_stores_independent(store, data, tmp_path, monkeypatch):
    train, _, test = split_links(store)
    inode = os.stat(store.path / "nodes/x.npy").st_ino
    assert {os.stat(part.path / "nodes/x.npy").st_ino for part in (train, test)} == {inode}

    # On a file system without links files are copied.
    monkeypatch.setattr(os, "link", Mock(side_effect=PermissionError))
    copied = split_links(store, tmp_path / "p").train
    assert os.stat(copied.path / "nodes/x.npy").st_nlink == 1
    gnndrive.from_data(Data(edge_index=torch.zeros(2, 1).long(), num_nodes=2), store.path,
                       if_exists="replace")  # fmt: skip
    for part in (train, copied):
        part.verify()
        assert torch.equal(open_links(part.path).test.tensor("x"), data.x)


def test_edges_without_numbers(tmp_path):
    indptr = np.arange(0, 401, 4)
    store = gnndrive.write_store(
        tmp_path / "s", indptr=indptr, indices=np.random.default_rng(0).integers(0, 100, 400),
        nodes={}, edges={"row": np.arange(400)},
    )  # fmt: skip
    for part in split_links(store, tmp_path / "p"):
        assert part.edge_id is None
        assert np.array_equal(edges_of(part), edges_of(store)[:, part.tensor("edges/row")])


def test_copies_of_an_edge_stay_together(tmp_path):
    thrice = distinct(NODES, 300).repeat(1, 3)
    store = gnndrive.from_data(Data(edge_index=thrice, num_nodes=NODES), tmp_path / "s")
    train, val, test = split_links(store, num_val=100, num_test=150)
    assert 98 <= halves_count(val) <= 100
    assert 147 <= halves_count(test) <= 150
    assert not pairs(edges_of(test)) & halves(test)[0]
    assert not pairs(edges_of(train)) & halves(val)[0]


def test_labels_are_attributes_of_a_part(store):
    part = split_links(store).train
    for each in (part, part.edges()):
        for name in ("edge_label_index", "edge_label"):
            assert name in each
            assert name in each.keys()  # noqa: SIM118
            assert each.get(name) is each[name] is each.to_dict()[name] is getattr(each, name)
            assert not each.is_edge_attr(name)


# ---- types

RATES, REVERSE = ("user", "rates", "movie"), ("movie", "rev_rates", "user")


@pytest.fixture
def rated(users: int = 30, movies: int = 40) -> HeteroData:
    data = HeteroData()
    data["user"].x, data["movie"].num_nodes = torch.rand(users, 2), movies
    chosen = torch.from_numpy(np.random.default_rng(1).permutation(users * movies)[:500])
    ends = torch.stack([chosen // movies, chosen % movies])
    data[RATES].edge_index = ends
    data[RATES].stars = torch.arange(500)
    mixed = torch.randperm(500)
    data[REVERSE].edge_index = ends.flip(0)[:, mixed]
    data[REVERSE].stars = torch.arange(500)[mixed]
    data["user", "knows", "user"].edge_index = distinct(users, 60)
    return data


def test_reverse_edges_are_in_the_same_part(rated, tmp_path):
    store = gnndrive.from_data(rated, tmp_path / "s")
    arguments: Any = {"edge_types": RATES, "rev_edge_types": REVERSE, "disjoint_train_ratio": 0.4}
    parts = split_links(store, tmp_path / "p", **arguments)
    expected = RandomLinkSplit(**arguments)(rated)
    for mine, theirs in zip(parts, expected, strict=True):
        mine.verify()
        check_against_pyg([mine[RATES]], [theirs[RATES]], False)
        assert pairs(edges_of(mine[RATES])) == {(u, v) for v, u in pairs(edges_of(mine[REVERSE]))}
        assert torch.equal(mine["knows"].edge_index, store["knows"].edge_index)
        ends = edges_of(mine[RATES]).T.tolist()
        by_stars = dict(zip(mine[RATES].stars.tolist(), ends, strict=True))
        for star, pair in zip(mine[REVERSE].stars.tolist(), edges_of(mine[REVERSE]).T, strict=True):
            assert by_stars[star] == pair[::-1].tolist()
        assert mine.edge_label_index is mine[RATES].edge_label_index
    seeds = (RATES, mine[RATES].edge_label_index)
    with LinkNeighborLoader(mine, [2, 2], seeds, mine[RATES].edge_label, batch_size=50) as loader:
        assert sum(len(batch[RATES].edge_label) for batch in loader) == len(mine.edge_label)


def test_the_latest_edges_are_for_tests(data, rated, tmp_path):
    data.time = torch.randperm(EDGES) // 2 * 10**15 - 10**17
    store = gnndrive.from_data(data, tmp_path / "s")
    parts = split_links(store, tmp_path / "p", time="time", num_val=99, disjoint_train_ratio=0.1)
    order = data.edge_index[:, data.time.argsort()]
    for part, passing, supervised in zip(
        parts, (632, 702, 800), ((632, 702), (702, 800), (800, 1000)), strict=True
    ):
        assert pairs(edges_of(part)) == pairs(order[:, :passing])
        assert halves(part)[0] == pairs(order[:, slice(*supervised)])
    rated[RATES].stars -= 2**62
    rated[REVERSE].stars -= 2**62
    store = gnndrive.from_data(rated, tmp_path / "r")
    given: Any = {"edge_types": RATES, "rev_edge_types": REVERSE, "time": "stars"}
    parts = split_links(store, tmp_path / "q", **given)
    for part, passing in zip(parts, (350, 350, 400), strict=True):
        for type in (RATES, REVERSE):
            assert sorted(part[type].stars + 2**62) == [*range(passing)]
    data.time[:] = 3
    same = gnndrive.from_data(data, tmp_path / "t")
    for given, words in (
        ({"time": "when"}, "edges/when is not there; the edges have"),
        ({"time": "weight"}, r"edges/weight is float64 \[1000\]: times are one whole number"),
        ({"time": "time"}, "so many have the same that a part would have none: give larger"),
    ):
        with refused(tmp_path, words):
            split_links(same, tmp_path / "u", **given)


def test_several_types(rated, tmp_path):
    store = gnndrive.from_data(rated, tmp_path / "s")
    given: Any = {"edge_types": ["rates", "knows"], "rev_edge_types": ["rev_rates", None]}
    test = split_links(store, tmp_path / "p", **given).test
    assert len(test[RATES].edge_label) == 200
    assert len(test["knows"].edge_label) == 24
    assert set(test.edge_label_index_dict) == {RATES, ("user", "knows", "user")}
    with pytest.raises(ConfigError, match=r"several edge types have labels: read part\[TYPE\]"):
        _ = test.edge_label
    assert not hasattr(test["rev_rates"], "edge_label")


def test_types_that_do_not_fit_are_refused(rated, tmp_path):
    store = gnndrive.from_data(rated, tmp_path / "s")
    for types, reverse, words in (
        (None, None, "edge_types= is not given"),
        (["rates", "knows"], [None], "give one for each"),
        ("rates", "knows", "joins other types"),
        (["rates", "rev_rates"], ["rev_rates", None], "twice"),
        ("knows", "knows", "give is_undirected=True"),
        ("hates", None, "there is no 'hates'"),
    ):
        with pytest.raises(ConfigError, match=words):
            split_links(store, tmp_path / "p", edge_types=types, rev_edge_types=reverse)
    assert left(tmp_path) == ["s"]


# ---- labels, and pairs without an edge


def test_labels_of_edges(data, tmp_path):
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
    assert left(tmp_path) == ["p", "s"]


def test_ratio_of_pairs_without_an_edge(store, tmp_path):
    parts = split_links(store, tmp_path / "a", neg_sampling_ratio=3.5, num_val=0.1, num_test=7)
    assert [len(halves(part)[1]) for part in parts] == [3125, 350, 24]
    none = split_links(store, tmp_path / "b", neg_sampling_ratio=0)
    assert all((part.edge_label == 1).all() for part in none)


def test_a_graph_with_too_few_pairs_left(tmp_path):
    store = gnndrive.from_data(Data(edge_index=distinct(8, 40), num_nodes=8), tmp_path / "s")
    with pytest.warns(UserWarning, match="because the graph has no more") as said:
        parts = split_links(store, tmp_path / "p", num_val=0.25, num_test=0.25)
    assert {each.filename for each in said} == {__file__}
    whole = pairs(edges_of(store))
    empty = {(u, v) for u in range(8) for v in range(8) if u != v} - whole
    assert set.union(*(halves(part)[1] for part in parts)) == empty


@pytest.mark.parametrize("enumerate_up_to", [1 << 20, 0])
def test_pairs_without_an_edge_are_uniform(tmp_path, monkeypatch, enumerate_up_to):
    monkeypatch.setattr(classes, "CHUNK", 20)  # several chunks, one of them of one popular node
    monkeypatch.setattr(drawing, "CHUNK", enumerate_up_to)
    edges = torch.cat([distinct(12, 40), torch.stack([torch.arange(9), torch.full((9,), 3)])], 1)
    store = gnndrive.from_data(Data(edge_index=edges.unique(dim=1), num_nodes=12), tmp_path / "s")
    whole = pairs(edges)
    free = [(u, v) for u in range(12) for v in range(12) if u != v and (u, v) not in whole]
    counts = dict.fromkeys(free, 0)
    random = np.random.default_rng(1)
    for _ in range(100):
        drawn = list(drawing.negatives(store.edges(), [15, 10], random))
        for place, total in enumerate((15, 10)):
            source, target = (np.concatenate([each[place][at] for each in drawn]) for at in (0, 1))
            assert len(source) == total
            for pair in zip(source.tolist(), target.tolist(), strict=True):
                counts[pair] += 1
    expected = 100 * 25 / len(free)
    assert max(abs(count - expected) for count in counts.values()) < 5 * expected**0.5


# ---- seeds, opening again


def test_the_seed_decides(store, tmp_path):
    seeds = {"first": 3, "same": 3, "other": 4}
    first, same, other = (split_links(store, tmp_path / name, seed=seeds[name]) for name in seeds)
    for one, two in zip(first, same, strict=True):
        assert np.array_equal(edges_of(one), edges_of(two))
        assert torch.equal(one.edge_label_index, two.edge_label_index)
    assert not np.array_equal(edges_of(first.train), edges_of(other.train))


def test_a_split_is_opened_again(store, tmp_path):
    path = tmp_path / "p"
    made = split_links(store, path, if_exists="open", disjoint_train_ratio=0.2)
    for again in (
        split_links(store, path, if_exists="open", disjoint_train_ratio=0.2),
        open_links(path),
        pickle.loads(pickle.dumps(made)),
    ):
        for one, two in zip(made, again, strict=True):
            assert one.identity == two.identity
            assert torch.equal(one.edge_label_index, two.edge_label_index)
            assert torch.equal(one.edge_label, two.edge_label)
    assert gnndrive.open(path).identity == made.train.identity
    with pytest.raises(ConfigError, match=r'another num_val, another seed: choose.*"replace"'):
        split_links(store, path, if_exists="open", disjoint_train_ratio=0.2, num_val=0.3, seed=1)
    with pytest.raises(ConfigError, match="exists"):
        split_links(store, path)
    replaced = split_links(store, path, if_exists="replace", seed=9)
    assert not (path / "val").exists()
    assert replaced.val.identity == replaced.train.identity
    assert left(tmp_path) == ["p", "s.gnn"]


def test_a_damaged_split_is_refused(store, tmp_path):
    path = split_links(store, tmp_path / "p", num_val=0, disjoint_train_ratio=0.3).train.path
    assert open_links(path).val.edge_label.shape == (0,)
    with pytest.raises(ConfigError, match="has no task 'first' of links; leave it out"):
        open_links(path, "first")
    with pytest.raises(StoreError, match="is not a split of links"):
        open_links(store.path)
    outside = tmp_path / "outside"

    def check(file: Path, words: str, *damages: bytes | Callable[[], object]) -> None:
        """Refuse a file in place of which there is something else."""
        file.rename(outside)
        for damage in damages:
            file.write_bytes(damage) if isinstance(damage, bytes) else damage()
            with pytest.raises(StoreError, match=words):
                open_links(path)
            file.unlink()
        outside.rename(file)

    record = path / "links/links.json"
    types: Any = (
        [["a", ["b"], "c"]], [[1, 2, 3]], [["a", "..", "b"]], [], [[]] * 2, {}, {"": 1}, "x", None,
    )  # fmt: skip
    whole = json.loads(record.read_text())
    changed = (json.dumps(whole | {"edge_types": each}).encode() for each in types)
    check(record, "is not a split", b"", b"{", b"[" * 10**6, b'{"edge_types": [3]}', *changed)
    for file in (path / "links/test/edges.npy", path / "links/test/labels.npy"):
        content = file.read_bytes()
        check(
            file, "cannot be read.*split the links again|split the links again",
            b"", content[:100], content[1:],
            content.replace(b"'shape': (", b"'shape': (" + b"9" * 30),
            lambda file=file: np.save(file, np.zeros((3, 3, 3))),
            lambda file=file: file.symlink_to(outside), lambda file=file: os.mkfifo(file),
        )  # fmt: skip
    folder = path / "links/train"
    check(folder, "split the links again", lambda: folder.symlink_to(outside))
    other = Data(edge_index=distinct(NODES, EDGES), num_nodes=NODES + 1)
    for part in ("test", "val"):
        gnndrive.from_data(other, path / part, if_exists="replace")
        with pytest.raises(StoreError, match="is not a split"):
            open_links(path)


# ---- what is refused


def test_arguments_that_cannot_work(store, data):
    path = store.path.parent / "x" / ".." / "s.gnn"
    for given, words in (
        ({"num_val": 1.5}, "num_val=1.5: give a share from 0.0 to 1.0, or a number"),
        ({"num_test": -1}, "num_test=-1"),
        ({"num_val": float("nan")}, "num_val=nan"),
        ({"num_val": 0.5, "num_test": 0.5}, "give fewer, so that edges are left"),
        ({"num_val": 10**9}, "give fewer"),
        ({"disjoint_train_ratio": 1.0}, "700 to supervise with alone: give fewer"),
        ({"neg_sampling_ratio": -1}, "neg_sampling_ratio=-1"),
        ({"neg_sampling_ratio": "x"}, "neg_sampling_ratio='x'"),
        ({"seed": 0.5}, "seed=0.5: give a whole number"),
        ({"if_exists": "keep"}, 'if_exists=.keep.: give "error", "open" or "replace"'),
        ({"memory": "1MB"}, '=1 MB is too little: splitting these edges needs memory="26.38MB"'),
        ({"edge_types": "x"}, "is homogeneous: leave out edge_types"),
        ({"path": path}, "is the store that is split: choose another path"),
        ({"store": data}, "for data in memory there is"),
    ):
        with refused(store.path.parent, words):
            split_links(**{"store": store, **given})


def test_attributes_of_nodes_that_were_set_are_on_the_parts(store, tmp_path):
    store.y, store.mark = torch.zeros(NODES), torch.arange(NODES)
    del store.x
    for if_exists in ("error", "open"):
        parts = split_links(store, tmp_path / "p", if_exists=if_exists)
        for part in (*parts, pickle.loads(pickle.dumps(parts.val))):
            assert torch.equal(part.y, torch.zeros(NODES))
            assert torch.equal(part.mark, torch.arange(NODES))
            assert "x" not in part
        parts.train.mark = torch.zeros(NODES)
        assert torch.equal(store.mark, parts.val.mark)
    assert "x" in open_links(tmp_path / "p").train


def test_attributes_of_edges_that_were_set_or_deleted_are_refused(store, tmp_path):
    for name in ("late", "weight", "edge_label"):
        mine = gnndrive.open(store.path)
        mine[name] = torch.arange(store.num_edges)
        with pytest.raises(ConfigError, match=rf"^{name} was set .*gnndrive\.open"):
            split_links(mine, tmp_path / "p")
    del store.weight
    with pytest.raises(ConfigError, match=r"^weight was set or deleted"):
        split_links(store, tmp_path / "p", key="weight")
    assert not (tmp_path / "p").exists()


# ---- larger than memory


@pytest.mark.filterwarnings("ignore:.* pairs of nodes without an edge instead of 2")
def test_edges_larger_than_memory(tmp_path):
    nodes, degree = 15_000, 75
    random = np.random.default_rng(0)
    store = gnndrive.write_store(
        tmp_path / "s", indptr=np.arange(nodes + 1) * degree,
        indices=random.integers(0, nodes, nodes * degree),
        edge_id=random.permutation(nodes * degree), nodes={},
        edges={"weight": np.arange(nodes * degree)},
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r'needs memory="[\d.]+MB"') as caught:
        split_links(store, tmp_path / "p", memory="8MB", neg_sampling_ratio=0.2)
    least = str(caught.value).split('"')[1]
    limit = parse_size(least, "memory")
    assert 40 * store.num_edges > 1.5 * limit  # what sorting takes in memory
    small = gnndrive.from_data(Data(edge_index=distinct(9, 40), num_nodes=9), tmp_path / "small")
    split_links(small, num_val=2, num_test=2)  # imports what is imported when it is needed
    tracemalloc.start()
    try:
        parts = split_links(store, tmp_path / "p", memory=least, neg_sampling_ratio=0.2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limit
    assert parts.test.num_edges == store.num_edges - halves_count(parts.test)
