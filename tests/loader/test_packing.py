"""`gnndrive.pack` takes a loader's arguments, and replaces packs, and nothing else."""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive import ConfigError, NeighborLoader, Store, StoreError
from gnndrive.store.packed.format import PACKS, PackInfo, pack_path
from gnndrive.store.packed.verify import verify_pack
from tests.given import moved
from tests.store.packed.packs import make_graph

MEMORY = "100MB"


@pytest.fixture
def copy(store: Store, tmp_path: Path) -> Store:
    """A store of its own, into which a test may pack."""
    shutil.copytree(store.path, tmp_path / "graph.gnn")
    return gnndrive.open(tmp_path / "graph.gnn")


def pack(store: Any, **more: Any) -> PackInfo:
    given = {"num_neighbors": [4, 3], "batch_size": 32, "memory": MEMORY, "samplers": 1}
    return gnndrive.pack(store, **moved(given | more))


def test_a_store_or_its_path_is_packed(copy, tmp_path):
    info = pack(copy, epochs=np.int64(2), shuffle=True)
    assert [each.info for each in PACKS.of(copy)] == [info]
    assert (info.epochs, info.batches, info.settings.memory) == (2, 13, 100_000_000)
    again = pack(str(copy.path), epochs=2, shuffle=True, out=tmp_path / "p")
    assert again == info
    assert verify_pack(tmp_path / "p", copy) == info
    for path in (pack_path(copy, info.settings), tmp_path / "p"):
        with pytest.raises(ConfigError, match="is there already"):
            pack(copy, epochs=2, shuffle=True, out=path)


class Killed(Exception):
    """A packer ends here."""


@pytest.mark.parametrize("phase", ["recording", "placing", "writing", "checksums"])
@pytest.mark.parametrize(("first", "then"), [(None, ["x"]), (["x"], None), (["x"], ["edge_attr"])])
def test_a_pack_of_other_tables_is_not_gone_on_with(tmp_path, phase, first, then):
    store = gnndrive.from_data(make_graph(), tmp_path / "graph.gnn")

    def interrupt(what: str, done: int, total: int) -> None:
        if what.startswith(phase) and done == total:
            raise Killed

    with pytest.raises(Killed):
        pack(store, attrs=first, progress=interrupt)
    info = pack(store, attrs=then)
    assert [name.split("/")[1] for name in info.tables] == (then or ["x", "edge_attr"])
    assert verify_pack(pack_path(store, info.settings), store) == info


def test_a_pack_that_is_there_is_named_with_its_tables_and_replaced_if_told_so(tmp_path):
    store = gnndrive.from_data(make_graph(), tmp_path / "graph.gnn")
    path = pack_path(store, pack(store, attrs=["x"]).settings)
    with pytest.raises(ConfigError, match="is there already, with the rows of nodes/x: use it"):
        pack(store)
    (path / "pack.json").write_text("{}")
    with pytest.raises(ConfigError, match="already: use it, or replace it "):
        pack(store)
    info = pack(store, overwrite=True)
    assert (verify_pack(path, store), list(path.parent.iterdir())) == (info, [path])


def test_the_arguments_are_the_loaders(copy):
    nodes, seed = torch.arange(100), (1 << 64) - 1
    info = pack(copy, input_nodes=nodes, seed=seed, disjoint=True, order="minhash", segment=2)
    given: dict[str, Any] = {
        "input_nodes": nodes, "batch_size": 32, "seed": seed, "disjoint": True, "memory": MEMORY,
    }  # fmt: skip
    with (
        NeighborLoader(copy, [4, 3], **moved(given)) as drawn,
        NeighborLoader(copy, [4, 3], **moved(given), strategy="diskgnn") as replayed,
    ):
        inputs = drawn._assembly().inputs.identity
        for one, other in zip(drawn, replayed, strict=True):
            assert one.input_id.tolist() == other.input_id.tolist()
    settings = info.settings
    assert (settings.inputs, settings.seed, settings.num_neighbors) == (inputs, seed, [4, 3])
    assert (settings.order, settings.segment, info.segment) == ("minhash", 2, 2)
    assert "disjoint" in settings.sampling
    info = pack(copy, edge_label_index=None, neg_sampling="binary", batch_size=2000)
    assert (info.schema.of_edges, info.batches) == (True, 2)
    with pytest.raises(ConfigError, match="give one"):
        pack(copy, edge_label_index=None, input_nodes=torch.arange(3))


def test_memory_need_only_suffice_for_replaying(tmp_path):
    """Drawing the batches takes more; packing has memory of its own."""
    nodes, draw = 100_000, torch.Generator().manual_seed(0)
    edges = torch.randint(0, nodes, (2, 200_000), generator=draw)
    data = Data(x=torch.randn(nodes, 4, generator=draw), edge_index=edges)
    store = gnndrive.from_data(data, tmp_path / "graph.gnn")
    given: dict[str, Any] = {
        "num_neighbors": [2, 2], "input_nodes": torch.arange(640), "batch_size": 64, "seed": 3,
        "io_depth": 4, "memory": "1.4MB",
    }  # fmt: skip
    with (
        NeighborLoader(store, **moved(given)) as drawing,
        pytest.raises(ConfigError, match="too little"),
    ):
        drawing.plan()
    with pytest.raises(ConfigError, match="too little to pack"):
        gnndrive.pack(store, **moved(given))
    with pytest.raises(ConfigError, match="to replay these batches: give at least") as refused:
        gnndrive.pack(store, **moved(given | {"memory": "300KB"}), packing_memory="1GB")
    (least,) = re.findall('at least memory="(.*)",', str(refused.value))
    for memory in (least, "1.4MB"):
        info = gnndrive.pack(store, **moved(given | {"memory": memory}), packing_memory="1GB")
        with NeighborLoader(
            store, **moved(given | {"memory": memory}), strategy="diskgnn"
        ) as loader:
            assert loader.plan().total_bytes <= info.settings.memory

        shutil.rmtree(store.path / "packed")
    gnndrive.pack(store, **moved(given), packing_memory="1GB")
    with NeighborLoader(store, **moved(given), strategy="diskgnn") as loader:
        for batch in loader:
            assert torch.equal(batch.x, data.x[batch.n_id])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"memory": "7 apples"}, "memory='7 apples' is no size"),
        ({"disk": 0}, "disk=0"),
        ({"packing_memory": "1MB"}, "packing_memory|too little"),
        ({"order": "best"}, "give one of sets"),
        ({"epochs": 0}, "epochs=0"),
        ({"epochs": 2.0}, "epochs=2.0 must be a whole number"),
        ({"seed": None}, "seed=None must be a whole number"),
        ({"seed": 1 << 64}, "seed=18446744073709551616: give a whole number from -"),
        ({"disk": 1 << 48}, "disk=281474976710656: give a whole number from 0 to 281474976710655"),
        ({"sampler": range(3)}, "cannot be recorded"),
        ({"transform_sampler_output": lambda out: out}, "cannot be recorded"),
        ({"disk": "60KB"}, "needs about"),
    ],
)
def test_what_cannot_be_packed_is_refused(copy, arguments, message):
    with pytest.raises(ConfigError, match=message):
        pack(copy, **arguments)
    folder = copy.path / "packed"
    assert not folder.exists() or list(folder.iterdir()) == []


def test_a_loader_that_replays_is_not_recorded(copy):
    """Whether a pack fits or not; a pack of replayed batches would be broken."""
    for there in (0, 1):
        for given in ({"strategy": "diskgnn", "segment": 3}, {"packed": "p"}):
            with pytest.raises(ConfigError, match=r"'diskgnn'.* pack draws|packed='p' belongs"):
                pack(copy, **given)
        assert len(PACKS.of(copy)) == there
        if not there:
            pack(copy)


# ---- replacing


def test_what_is_no_pack_is_never_replaced(copy, tmp_path):
    """Of a link to a pack the link is replaced."""
    info = pack(copy, out=tmp_path / "p")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    (tmp_path / "link").symlink_to(tmp_path / "p")
    (tmp_path / "to mine").symlink_to(tmp_path / "mine")
    for name in ("mine", "mine/thesis.tex", "graph.gnn", "to mine"):
        with pytest.raises(StoreError, match="is not replaced, because it is no pack"):
            pack(copy, out=tmp_path / name, overwrite=True)
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"
    assert pack(copy, out=tmp_path / "link", overwrite=True) == info
    assert not (tmp_path / "link").is_symlink()
    assert verify_pack(tmp_path / "p", copy) == info
    copy.verify()


def test_a_folder_that_comes_while_packing_is_not_replaced(copy, tmp_path):
    def come(what: str, done: int, total: int) -> None:
        if what == "checksums" and not (tmp_path / "p").exists():
            (tmp_path / "p").mkdir()
            (tmp_path / "p" / "thesis.tex").write_text("years of work")

    with pytest.raises(StoreError, match="is not replaced, because it is no pack"):
        pack(copy, out=tmp_path / "p", overwrite=True, progress=come)
    assert (tmp_path / "p" / "thesis.tex").exists()
    shutil.rmtree(tmp_path / "p")
    pack(copy, out=tmp_path / "p")  # which ends what is left


def test_the_old_function_says_what_stands_for_it():
    with pytest.raises(AttributeError, match=r"replaced with gnndrive.pack\(…, overwrite=True\)"):
        gnndrive.unpack  # noqa: B018
