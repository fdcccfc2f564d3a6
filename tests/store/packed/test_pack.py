"""Whole packs: each sample is the loader's, each row its table's, the bytes are as predicted."""

from __future__ import annotations

import errno
import os
import re
import resource
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive import LinkNeighborLoader, NeighborLoader, Store
from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.memory import parse_size
from gnndrive.store.feature_tables import feature_tables
from gnndrive.store.packed import room, sharing
from gnndrive.store.packed.room import DoesNotFit
from gnndrive.store.packed.verify import verify_pack
from tests.loader.hetero.graph import WRITES, make_data
from tests.store.packed.graphs import NODES, files_of, make_graph
from tests.store.packed.packs import MEMORY, OpenedPack, drawn, pack_loader
from tests.store.test_store_added import add

Make = Callable[..., Any]
Small = Callable[..., None]
BATCHES = 19  # of an epoch of all nodes


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return gnndrive.from_data(make_graph(), tmp_path_factory.mktemp("pack") / "graph.gnn")


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return gnndrive.from_data(make_data(), tmp_path_factory.mktemp("typed") / "graph.gnn")


@pytest.fixture
def make(store: Store) -> Iterator[Make]:
    """Makes loaders over the store, or another as `data=`, and closes them after the test."""
    with ExitStack() as opened:

        def one(kind: Any = NeighborLoader, **arguments: Any) -> Any:
            given = {"data": store, "num_neighbors": [4, 3], "batch_size": 16, "seed": 5}
            given |= {"buffer": "4MB", "io_depth": 16, "shuffle": True}
            return opened.enter_context(kind(**(given | arguments)))

        yield one


def check(loader: Any, target: Path, epochs: int = 1, **more: Any) -> OpenedPack:
    """Pack a loader's batches and check all of them."""
    pack_loader(loader, target, epochs, **more)
    pack = OpenedPack(target, loader.data)
    pack.check(drawn(loader, epochs).batches)
    assert verify_pack(target, loader.data) == pack.info
    return pack


def test_too_little_memory_to_order_shared_rows_is_refused(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The message names the least that works, for all segments and tables."""
    monkeypatch.setattr(sharing, "_BYTES_A_SHARED_ROW", 1 << 20)
    given = {"segment": 8, "hot": 0.0}
    with pytest.raises(ConfigError, match="rows that 8 batches share: give packing") as error:
        pack_loader(make(), tmp_path / "p", **given)
    found = re.search(r"at least ([\d,.]+ ?\w*B)", str(error.value))
    assert found is not None
    least = parse_size(found[1], "memory")
    with pytest.raises(ConfigError, match="rows that 8 batches share"):
        pack_loader(make(), tmp_path / "p", **given, memory=int(least * 0.99))
    check(make(), tmp_path / "p", **given, memory=least)


@pytest.fixture
def few_files() -> Iterator[None]:
    """The test may open 100 more files, less than it has segments."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 100, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("more", [{}, {"disjoint": True}])
def test_open_files_do_not_grow_with_the_segments(
    make: Make, tmp_path: Path, few_files: None, more: dict[str, Any]
):
    """300 batches, 150 segments and as many volumes."""
    loader = make(batch_size=1, **more)
    source = drawn(loader)
    info = pack_loader(
        loader, tmp_path / "p", source=source, segment=2, volume_bytes=1 << 12, hot=0.01
    )
    assert sum(name.startswith("ids/nodes/x/0") for name in info.arrays) > 30
    assert sum(name.startswith("samples/") for name in info.arrays) > 100
    assert verify_pack(tmp_path / "p", loader.data) == info


@pytest.mark.parametrize("order", ["sets", "minhash", "id"])
@pytest.mark.parametrize("segment", [1, 8, 16, 3 * BATCHES])
def test_segments_and_orders(make: Make, tmp_path: Path, small: Small, order: str, segment: int):
    small(100_000, slice_rows=50)
    pack = check(make(), tmp_path / "p", 3, order=order, segment=segment, hot=0.1)
    assert pack.info.segment == segment
    assert len(pack.index) == 3 * BATCHES
    assert (pack.levels > 0).tolist() == [True, segment > 1, True]


@pytest.mark.parametrize("hot", [0, 0.01, 0.5, 1])
def test_shares_of_hot_rows(make: Make, tmp_path: Path, hot: float):
    pack = check(make(), tmp_path / "p", hot=hot)
    assert pack.info.segment == 8
    for table in pack.tables:
        rows = pack.info.arrays[f"ids/{table.name}/hot"].shape[0]
        assert rows <= hot * table.file.row_count
        assert (rows > 0) == (hot > 0)
    assert (pack.levels[2] > 0) == (hot > 0)


@pytest.mark.parametrize(
    "arguments",
    [
        {"disjoint": True, "batch_size": 5},
        {"disjoint": True, "replace": True},
        {"time_attr": "time", "temporal_strategy": "last"},
        {"time_attr": "edge_time", "input_time": torch.arange(NODES) % 60},
        {"weight_attr": "weight", "shuffle": False},
        {"subgraph_type": "induced"},
        {"subgraph_type": "bidirectional"},
        {"num_neighbors": [3, 2, 2, 2], "batch_size": 40},
        {"num_neighbors": [5], "batch_size": 300},
        {"num_neighbors": [0, 4]},
        {"replace": True, "num_neighbors": [-1, 2]},
        {"input_nodes": torch.tensor([7, 7, 7, 3, 3, 9]), "batch_size": 4},
        {"kind": LinkNeighborLoader, "neg_sampling": "binary", "batch_size": 200},
        {"kind": LinkNeighborLoader, "neg_sampling": "triplet", "batch_size": 300},
    ],
    ids=lambda each: " ".join(map(str, each))[:30],
)
def test_ways_of_sampling(make: Make, tmp_path: Path, arguments: dict[str, Any]):
    pack = check(make(**arguments), tmp_path / "p", 2, hot=0.1, segment=4)
    assert pack.levels[0] > 0


@pytest.mark.parametrize(
    "arguments",
    [
        {"input_nodes": "paper"},
        {"input_nodes": ("author", torch.arange(50)), "disjoint": True},
        {"input_nodes": "venue", "replace": True, "batch_size": 2},
        {"kind": LinkNeighborLoader, "edge_label_index": WRITES, "neg_sampling": "binary"},
    ],
    ids=lambda each: " ".join(map(str, each))[:30],
)
def test_several_types(make: Make, typed: Store, tmp_path: Path, arguments: dict[str, Any]):
    pack = check(make(data=typed, **arguments), tmp_path / "p", 2, hot=0.1)
    names = [table.name for table in pack.tables]
    assert "edges/author__writes__paper/edge_attr" in names
    assert len(names) == 4


@pytest.mark.parametrize(
    ("dtype", "columns"),
    [
        (torch.uint8, 1),
        (torch.float32, 1),
        (torch.int8, 100),
        (torch.bfloat16, 50),
        (torch.float32, 100),
        (torch.float16, 256),
        (torch.uint8, 1023),
        (torch.bfloat16, 2048),
        (torch.float64, 625),
        (torch.bool, 3),
        (torch.int64, (2, 8)),
    ],
)
def test_rows_of_any_size(
    make: Make, tmp_path: Path, small: Small, dtype: torch.dtype, columns: Any
):
    graph, shape = make_graph(), columns if isinstance(columns, tuple) else (columns,)
    x = torch.randint(0, 2 if dtype == torch.bool else 100, (NODES, *shape)).to(dtype)
    other = gnndrive.from_data(Data(x=x, edge_index=graph.edge_index), tmp_path / "graph.gnn")
    width = feature_tables(other)[0].file.row_bytes
    small(max(40 * width, 20_000) + 2 * 4096, slice_rows=30)
    check(make(data=other), tmp_path / "p", order="minhash", segment=19)


def test_two_tables_of_nodes(make: Make, tmp_path: Path):
    """The second one's entries follow the order of the first one's rows."""
    made = gnndrive.from_data(make_graph(), tmp_path / "graph.gnn")
    add(made, torch.randn(NODES, 40))
    made.find_added()
    pack = check(make(data=made), tmp_path / "p", hot=0.1)
    assert [table.name for table in pack.tables][:2] == ["nodes/x", "nodes/h"]
    assert [pack.places[table.name].arranged for table in pack.tables] == [True, False, False]


def test_a_pack_depends_on_its_settings_alone(make: Make, tmp_path: Path, small: Small):
    """Not on memory, threads, volumes' bytes of rows, or where it is."""
    pack_loader(make(samplers=1), tmp_path / "p")
    small(30_000, slice_rows=7)
    pack_loader(make(samplers=4, extracting_queue=9), tmp_path / "q", memory=2 * MEMORY)
    assert files_of(tmp_path / "p") == files_of(tmp_path / "q")


def test_progress_is_told_by_phase(make: Make, tmp_path: Path):
    told = dict[str, list[tuple[int, int]]]()
    pack_loader(
        make(), tmp_path / "p", order="minhash", segment=19,
        progress=lambda what, done, total: told.setdefault(what, []).append((done, total)),
    )  # fmt: skip
    phases = ["record", "search", "share", "place", "rows nodes:x", "rows edges:edge_attr"]
    assert [each for each in told if not each.startswith("order")] == [*phases, "check"]
    for each in told.values():
        assert len({total for _, total in each}) == 1
        assert each == sorted(each)
        assert each[-1][0] == each[-1][1]


# ---- the disk


def needed(make: Make, tmp_path: Path, **more: Any) -> int:
    return pack_loader(make(), tmp_path / "unlimited", **more).actual_bytes


def test_the_smallest_segment_that_fits_is_taken(make: Make, tmp_path: Path):
    """With less than a segment needs, a larger one is taken."""
    sizes, disk = list[int](), None
    while True:
        target = tmp_path / str(len(sizes))
        try:
            info = pack_loader(make(), target, order="minhash", disk=disk, hot=0.01)
        except DoesNotFit:
            break
        assert disk is None or info.actual_bytes <= disk
        OpenedPack(target, make().data).check(drawn(make()).batches)
        sizes.append(info.segment)
        disk = info.actual_bytes - 10  # the number in pack.json is a few bytes longer, too
    assert sizes == sorted(set(sizes))
    assert sizes[0] == 1
    assert len(sizes) >= 3


def test_a_pack_that_does_not_fit_is_refused(make: Make, tmp_path: Path):
    """The message has the bytes, and what it names fits."""
    whole = needed(make, tmp_path, epochs=4, segment=1, hot=0.01)
    disk = whole - 200
    with pytest.raises(ConfigError) as error:
        pack_loader(make(), tmp_path / "p", 4, disk=disk, segment=1, hot=0.01)
    found = re.search(r"at least ([0-9,]+) bytes .*disk=", str(error.value))
    assert found is not None
    assert abs(int(found[1].replace(",", "")) - whole) < 20
    named = re.search(r"give segment=(\d+), or record epochs=(\d)", str(error.value))
    assert named is not None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["unlimited"]
    pack_loader(make(), tmp_path / "p", 4, disk=disk, segment=int(named[1]), hot=0.01)
    pack_loader(make(), tmp_path / "q", int(named[2]), disk=disk, segment=1, hot=0.01)


def test_what_fits_with_another_order_is_named(make: Make, tmp_path: Path):
    """The order "sets" has segments of at most 64 batches."""
    arguments: dict[str, Any] = {"epochs": 8, "hot": 0}
    least = needed(make, tmp_path, order="sets", segment=64, **arguments)
    with pytest.raises(ConfigError, match='give segment=128 and order="minhash"'):
        pack_loader(make(), tmp_path / "p", disk=least - 3000, **arguments)
    info = pack_loader(
        make(), tmp_path / "p", disk=least - 3000, order="minhash", segment=128, **arguments
    )
    assert info.actual_bytes <= least - 3000


def test_what_would_need_more_memory_is_not_named(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    arguments: dict[str, Any] = {"epochs": 4, "segment": 1, "hot": 0.01}
    disk = needed(make, tmp_path, **arguments) - 200
    monkeypatch.setattr(sharing, "_BYTES_A_SHARED_ROW", 1 << 40)
    with pytest.raises(DoesNotFit) as error:
        pack_loader(make(), tmp_path / "p", disk=disk, **arguments)
    assert "give segment" not in str(error.value)


def test_a_small_disk_is_refused_after_five_batches(make: Make, tmp_path: Path):
    told = list[int]()
    with pytest.raises(DoesNotFit, match=r"needs about [0-9,]+ bytes"):
        pack_loader(
            make(), tmp_path / "p", disk=20_000, progress=lambda _, done, __: told.append(done)
        )
    assert told == [1, 2, 3, 4]
    assert list(tmp_path.iterdir()) == []


def test_a_pack_whose_first_batches_are_the_largest_fits(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Four of nine batches have nodes without neighbours."""
    nodes = torch.cat([torch.arange(80), torch.arange(280, 300).repeat(4)[:64]])
    given: dict[str, Any] = {"segment": 1, "hot": 0, "hot_rows": lambda _: (0, None)}
    loader = make(input_nodes=nodes, shuffle=False)
    disk = pack_loader(loader, tmp_path / "p", **given).actual_bytes
    assert pack_loader(loader, tmp_path / "q", disk=disk + 1000, **given).actual_bytes > disk - 1000
    monkeypatch.setattr(room, "_UNSURE", 1)
    with pytest.raises(DoesNotFit, match="needs about"):
        pack_loader(loader, tmp_path / "r", disk=disk + 1000, **given)


def test_a_full_disk_is_refused_and_the_samples_are_kept(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    whole = needed(make, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(room, "free_bytes", lambda _: whole // 2)
        patch.setattr(room, "_MARGIN_BYTES", 0)
        with pytest.raises(StoreError, match=r"the disk of .* has [0-9,]+ for it: .*free some"):
            pack_loader(make(), tmp_path / "p")
    assert not (tmp_path / "p").exists()
    told = dict[str, int]()
    source = drawn(make())

    def noted(first: int) -> Any:
        told["first"] = first
        return iter(source.batches[first:])

    object.__setattr__(source, "draw", noted)
    pack_loader(make(), tmp_path / "p", source=source)
    assert told == {}, "nothing is drawn again"
    assert files_of(tmp_path / "p") == files_of(tmp_path / "unlimited")


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.EACCES, "may write with out="), (errno.EROFS, "may write with out="),
        (errno.EPERM, "may write with out="), (errno.ENOSPC, "free some space"),
    ],
)  # fmt: skip
def test_a_folder_that_cannot_be_written_is_refused_with_what_helps(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, remedy: str
):
    def mkdir(*_: Any, **__: Any) -> None:
        raise OSError(code, os.strerror(code))

    loader = make()
    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(StoreError, match=remedy) as error:
        pack_loader(loader, tmp_path / "p")
    assert os.strerror(code) in str(error.value)


# ---- arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"memory": 1 << 20}, "too little to pack 2,800 rows: give at least"),
        ({"segment": 65}, "segment=65 is too large"),
        ({"segment": 0}, "segment=0: give a whole number from 1 to"),
        ({"order": "best"}, "give one of sets, minhash, id"),
    ],
)
def test_wrong_arguments_are_refused(
    make: Make, tmp_path: Path, arguments: dict[str, Any], message: str
):
    with pytest.raises(ConfigError, match=message):
        pack_loader(make(), tmp_path / "p", **arguments)
    assert list(tmp_path.iterdir()) == []


def test_nothing_to_pack_is_refused(make: Make, tmp_path: Path):
    bare = gnndrive.from_data(
        Data(edge_index=make_graph().edge_index, num_nodes=NODES), tmp_path / "bare.gnn"
    )
    with pytest.raises(ConfigError, match="no features to pack"):
        pack_loader(make(data=bare), tmp_path / "p")
    with pytest.raises(ConfigError, match="no batches to pack"):
        pack_loader(make(drop_last=True, batch_size=400), tmp_path / "p")


def test_few_ids_are_kept_in_memory(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The ids of a segment are looked up again if they do not fit."""
    pack_loader(make(), tmp_path / "p", hot=0.1)
    monkeypatch.setattr(sharing, "_KEPT_SHARE", MEMORY // 1500)
    pack_loader(make(), tmp_path / "q", hot=0.1)
    assert files_of(tmp_path / "p") == files_of(tmp_path / "q")
