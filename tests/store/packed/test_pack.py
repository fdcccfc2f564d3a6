"""Whole packs: rows, bytes as predicted, memory and disks that are too small, kills."""

import errno
import os
import random
import re
import resource
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.memory import parse_size
from gnndrive.store.feature_tables import feature_tables
from gnndrive.store.layout import row_writer, rows
from gnndrive.store.packed import pack, sharing
from gnndrive.store.packed.format import PACKS
from gnndrive.store.packed.pack import DoesNotFit, Room
from gnndrive.store.packed.verify import verify_pack
from tests.store.packed.packs import check_pack, drawn, files_of, make_graph, pack_loader, rows_at
from tests.store.packed.resuming import Work
from tests.store.test_store_added import add


@pytest.mark.parametrize("hot", [0, 0.01, 1])
def test_shares_of_hot_rows(make, tmp_path, hot):
    info = check_pack(make(batch_size=32), tmp_path / "p", hot=hot)
    assert info.segment == 8
    for table in feature_tables(make().data):
        rows = info.arrays[f"ids/{table.name}/hot"].shape[0]
        assert rows <= hot * table.file.row_count
        assert (rows > 0) == (hot > 0)
    assert (rows_at(tmp_path / "p", info)["hot"] > 0) == (hot > 0)


@pytest.mark.parametrize(
    ("dtype", "shape", "order", "segment"),
    [(torch.uint8, (1023,), "minhash", 19), (torch.float64, (625,), "sets", 1),
     (torch.bool, (3,), "id", 4), (torch.int64, (2, 8), "sets", 20)],
)  # fmt: skip
def test_rows_of_any_size(make, tmp_path, small, monkeypatch, dtype, shape, order, segment):
    monkeypatch.setattr(rows, "STRETCH_BYTES", 10_000)
    data = make_graph()
    x = torch.randint(0, 2 if dtype == torch.bool else 100, (data.num_nodes, *shape)).to(dtype)
    data = Data(x=x, edge_index=data.edge_index)
    other = gnndrive.from_data(data, tmp_path / "graph.gnn")
    width = feature_tables(other)[0].file.row_bytes
    small(max(40 * width, 20_000) + 2 * 4096, slice_rows=30)
    info = check_pack(make(data=other), tmp_path / "p", order=order, segment=segment)
    assert (rows_at(tmp_path / "p", info)["shared"] > 0) == (segment > 1)


def test_two_tables_of_nodes(make, tmp_path):
    """The second one's entries follow the order of the first one's rows."""
    made = gnndrive.from_data(make_graph(), tmp_path / "graph.gnn")
    add(made, torch.randn(made.num_nodes, 40))
    made.find_added()
    info = check_pack(make(data=made), tmp_path / "p", hot=0.1)
    names = {
        each.name.removeprefix("order/") for each in info.schema.sections if "order/" in each.name
    }
    assert names == {"nodes/h", "edges/edge_attr"}


def test_open_files_do_not_grow_with_the_segments(make, tmp_path, stack):
    """100 batches, 50 segments and as many volumes, and 32 more files may be open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
    few = len(os.listdir("/proc/self/fd")) + 32
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, before[1]))
    loader = make(batch_size=1, input_nodes=torch.arange(100))
    given = {"source": drawn(loader), "segment": 2, "volume_bytes": 1 << 12, "hot": 0.01}
    info = pack_loader(loader, tmp_path / "p", **given)
    assert sum(name.startswith("ids/nodes/x/0") for name in info.arrays) > 10
    assert sum(name.startswith("samples/") for name in info.arrays) > 40
    assert verify_pack(tmp_path / "p", loader.data) == info


def test_a_pack_depends_on_its_settings_alone(make, tmp_path, small, monkeypatch):
    """Not on memory, threads, volumes' bytes of rows, or where it is."""
    pack_loader(make(samplers=1), tmp_path / "p")
    small(30_000, slice_rows=7)
    monkeypatch.setattr(sharing, "_KEPT_SHARE", 45_000)  # ids are looked up again
    pack_loader(make(samplers=4, extracting_queue=9), tmp_path / "q", memory=130 << 20)
    assert files_of(tmp_path / "p") == files_of(tmp_path / "q")


def test_progress_is_told_by_phase(make, tmp_path):
    told = dict[str, list[tuple[int, int]]]()
    pack_loader(
        make(), tmp_path / "p", order="minhash", segment=19,
        progress=lambda what, done, total: told.setdefault(what, []).append((done, total)),
    )  # fmt: skip
    assert [each for each in told if not each.startswith("ordering rows")] == [
        "recording batches", "choosing segments", "ordering shared rows", "placing rows in batches",
        "writing rows of nodes:x", "writing rows of edges:edge_attr", "checksums",
    ]  # fmt: skip
    for each in told.values():
        assert len({total for _, total in each}) == 1
        assert each == sorted(each)
        assert each[-1][0] == each[-1][1]


# ---- memory and disk


def test_too_little_memory_to_order_shared_rows_is_refused(make, tmp_path, monkeypatch):
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
    pack_loader(make(), tmp_path / "p", **given, memory=least)


def test_the_smallest_segment_that_fits_is_taken(make, tmp_path):
    """With less than a segment needs, a larger one is taken."""
    sizes, disk, loader = list[int](), None, make()
    source = drawn(loader)
    while len(sizes) < 3:
        target = tmp_path / str(len(sizes))
        info = pack_loader(loader, target, source=source, order="minhash", disk=disk, hot=0.01)
        assert disk is None or info.actual_bytes <= disk
        sizes.append(info.segment)
        disk = info.actual_bytes - 10  # the number in pack.json is a few bytes longer, too
    assert sizes == sorted(set(sizes))
    assert sizes[0] == 1


def test_a_pack_that_does_not_fit_is_refused(make, tmp_path, monkeypatch):
    """The message has the bytes, and what it names fits; what needs more memory is not named."""
    loader = make(batch_size=32, input_nodes=torch.arange(160))
    given: dict[str, Any] = {"epochs": 4, "segment": 1, "hot": 0.01}
    whole = pack_loader(loader, tmp_path / "whole", **given).actual_bytes
    disk = whole - 200
    with pytest.raises(ConfigError) as error:
        pack_loader(loader, tmp_path / "p", **given, disk=disk)
    found = re.search(r"at least ([0-9,]+) bytes .*disk=", str(error.value))
    assert found is not None
    assert abs(int(found[1].replace(",", "")) - whole) < 20
    named = re.search(r"give segment=(\d+), or record epochs=(\d)", str(error.value))
    assert named is not None
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]
    pack_loader(loader, tmp_path / "p", **(given | {"segment": int(named[1])}), disk=disk)
    pack_loader(loader, tmp_path / "q", **(given | {"epochs": int(named[2])}), disk=disk)
    monkeypatch.setattr(sharing, "_BYTES_A_SHARED_ROW", 1 << 40)
    with pytest.raises(DoesNotFit) as error:
        pack_loader(loader, tmp_path / "r", **given, disk=disk)
    assert "give segment" not in str(error.value)


def test_what_fits_with_another_order_is_named(make, tmp_path):
    """The order "sets" has segments of at most 64 batches."""
    loader = make(batch_size=16, input_nodes=torch.arange(160))
    given: dict[str, Any] = {"epochs": 8, "hot": 0, "source": drawn(loader, 8)}
    least = pack_loader(loader, tmp_path / "w", segment=64, **given).actual_bytes
    with pytest.raises(ConfigError, match='give segment=128 and order="minhash"'):
        pack_loader(loader, tmp_path / "p", **given, disk=least - 3000)


def test_a_small_disk_is_refused_after_five_batches(make, tmp_path):
    told = list[int]()
    with pytest.raises(DoesNotFit, match=r"needs about [0-9,]+ bytes"):
        pack_loader(
            make(), tmp_path / "p", disk=20_000, progress=lambda _, done, __: told.append(done)
        )
    assert told == [1, 2, 3, 4]
    assert list(tmp_path.iterdir()) == []


def test_only_samples_of_twice_the_disk_are_refused_after_five_batches(tmp_path):
    """Because the first batches may be larger than the others."""
    room = Room(tmp_path, Mock(disk=1000))
    room.check_prediction(2001)
    with pytest.raises(DoesNotFit, match=r"needs about 2,002 bytes .*disk="):
        room.check_prediction(2002)


def test_a_full_disk_is_refused_and_the_samples_are_kept(make, tmp_path, monkeypatch):
    whole = pack_loader(make(), tmp_path / "whole").actual_bytes
    with monkeypatch.context() as patch:
        patch.setattr(pack, "free_bytes", lambda _: 1)
        assert Room(tmp_path, None).free == 0, "not less"
        patch.setattr(pack, "free_bytes", lambda _: whole // 2)
        patch.setattr(pack, "_MARGIN_BYTES", 0)
        with pytest.raises(StoreError, match=r"the disk of .* has [0-9,]+ for it: .*free some"):
            pack_loader(make(), tmp_path / "p")
    assert not (tmp_path / "p").exists()
    source = drawn(make())
    object.__setattr__(source, "draw", lambda first: pytest.fail("a batch is drawn again"))
    pack_loader(make(), tmp_path / "p", source=source)
    assert files_of(tmp_path / "p") == files_of(tmp_path / "whole")


def test_a_folder_that_cannot_be_written_is_refused_with_what_helps(make, tmp_path, monkeypatch):
    loader = make()
    remedies = dict.fromkeys((errno.EACCES, errno.EROFS, errno.EPERM), "make the folder writable")
    remedies[errno.ENOSPC] = "free some.*goes on.*another disk"
    for code, remedy in remedies.items():
        with monkeypatch.context() as patch:
            patch.setattr(Path, "mkdir", Mock(side_effect=OSError(code, os.strerror(code))))
            with pytest.raises(StoreError, match=remedy) as error:
                pack_loader(loader, tmp_path / "p")
        assert os.strerror(code) in str(error.value)


def test_wrong_arguments_are_refused(make, tmp_path):
    for arguments, message in (
        ({"memory": 1 << 20}, "too little to pack 2,800 rows: give at least"),
        ({"segment": 65}, "segment=65 is too large"),
        ({"segment": 0}, "segment=0: give a whole number from 1 to"),
    ):
        with pytest.raises(ConfigError, match=message):
            pack_loader(make(), tmp_path / "p", **arguments)
    assert list(tmp_path.iterdir()) == []


def test_nothing_to_pack_is_refused(make, tmp_path):
    data = Data(edge_index=torch.zeros(2, 1).long(), num_nodes=9)
    bare = gnndrive.from_data(data, tmp_path / "bare.gnn")
    with pytest.raises(ConfigError, match="no features to pack"):
        pack_loader(make(data=bare), tmp_path / "p")
    with pytest.raises(ConfigError, match="no batches to pack"):
        pack_loader(make(drop_last=True, batch_size=400), tmp_path / "p")


# ---- interrupted


@pytest.fixture
def work(make, tmp_path, small, monkeypatch) -> Work:
    small(20_000, slice_rows=100)
    monkeypatch.setattr(row_writer, "BUFFER_BYTES", 8 * 4096)
    monkeypatch.setattr(rows, "RUNS_MAX", 3)  # so that shared rows are spooled
    loader = make(input_nodes=torch.arange(160))
    source, target = drawn(loader), tmp_path / "packs" / "p"
    target.parent.mkdir()
    given = {"source": source, "order": "minhash", "segment": 5, "hot": 0.1}
    made = Work(
        target, lambda tell: pack_loader(loader, target, **given, progress=tell), PACKS.lock
    )
    verify_pack(target, loader.data)
    assert len(made.phases) == 10
    return made


def test_a_packer_that_is_killed_is_finished_by_the_next(work, seeds):
    for seed in seeds(3):
        work.check_kills(random.Random(seed))


def test_a_packer_whose_disk_fails_is_finished_by_the_next(work, seeds, monkeypatch):
    for seed in seeds(4):
        work.check_failure(random.Random(seed), monkeypatch)
