"""`verify_pack` finds each damage: of a file, of a place, of a row; and never crashes."""

import random
import shutil
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

import gnndrive
from gnndrive.common.errors import StoreError
from gnndrive.store.packed.format import PACKS
from gnndrive.store.packed.verify import verify_pack
from tests.given import moved
from tests.store.conftest import edit_json, poke
from tests.store.packed.packs import make_graph, pack_loader


@pytest.fixture(scope="module")
def packed(graph, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("verify") / "p"
    given = {"batch_size": 60, "seed": 5, "buffer": "4MB", "io_depth": 16}
    with gnndrive.NeighborLoader(graph, [4, 3], **moved(given)) as loader:
        pack_loader(loader, root, hot=0.1, segment=2)
    return root


@pytest.fixture
def root(packed, tmp_path) -> Path:
    """A pack that the test may damage."""
    return Path(shutil.copytree(packed, tmp_path / "p"))


def claim(root: Path, name: str) -> None:
    """Write the checksum of a file that was changed into pack.json."""
    info = PACKS.read(root)
    digest = f"sha256:{sha256((root / f'{name}.npy').read_bytes()).hexdigest()}"
    arrays = dict(info.arrays) | {name: replace(info.arrays[name], checksum=digest)}
    (root / "pack.json").write_bytes(PACKS.dump(replace(info, arrays=arrays)))


def test_every_file_is_read(root, graph):
    """One bit in the data of any file is found, and so is a missing or a shorter one."""
    told = dict[str, list[tuple[int, int]]]()
    verify_pack(root, graph, lambda what, *each: told.setdefault(what, []).append(each))
    assert all(each[-1][0] == each[-1][1] for each in told.values())
    assert list(told) == ["checksums", "samples", "rows nodes/x", "rows edges/edge_attr"]
    for path in sorted(root.rglob("*.npy")):
        content = path.read_bytes()
        for place in {4096, len(content) - 1} - {4095}:
            poke(path, place, bytes([content[place] ^ 4]))
            with pytest.raises(StoreError, match="pack"):
                verify_pack(root, graph)
            path.write_bytes(content)
        path.write_bytes(content[:-1])
        with pytest.raises(StoreError):
            verify_pack(root, graph)
        path.unlink()
        with pytest.raises(StoreError):
            verify_pack(root, graph)
        path.write_bytes(content)
    verify_pack(root, graph)


@pytest.mark.parametrize("name", ["index", "samples/000", "ids/nodes/x/hot", "ids/nodes/x/000"])
def test_what_a_stranger_changed_is_refused_or_harmless(root, graph, name, seeds):
    """Numbers are replaced by others and the checksums made to fit. What is accepted differs from
    the pack in nothing that a batch has: in padding, or in numbers that are nowhere used."""
    path = root / f"{name}.npy"
    content, refused = path.read_bytes(), 0
    dtype = np.dtype(np.int64 if name == "index" else np.int32)
    numbers = np.flatnonzero(np.frombuffer(content, dtype)[4096 // dtype.itemsize :])
    for seed in seeds(8):
        draw = random.Random(seed)
        changed = np.frombuffer(content, dtype).copy()
        at = 4096 // dtype.itemsize + int(draw.choice(numbers.tolist()))
        changed[at] += draw.choice([1, -1, 64, -(1 << 30), 1 << 30])
        path.write_bytes(changed.tobytes())
        claim(root, name)
        try:
            verify_pack(root, graph)
        except StoreError:
            refused += 1
    assert refused >= 2


@pytest.mark.parametrize("name", ["chunk nodes/x 1", "chunk edges/edge_attr 0", "hot nodes/x 2"])
@pytest.mark.parametrize("more", [1 << 40, -(1 << 40)])
def test_counts_that_no_batch_has_are_refused(root, graph, name, more):
    """Before memory is taken for so many rows."""
    columns = PACKS.read(root).schema.columns
    index = np.memmap(root / "index.npy", np.int64, "r+", 4096)
    index[columns.index(name)] += more
    index.flush()
    claim(root, "index")
    with pytest.raises(StoreError, match="batch 0 counts other rows than it has"):
        verify_pack(root, graph)


def test_a_pack_json_that_contradicts_the_files_is_refused(root, graph):
    whole = (root / "pack.json").read_bytes()
    for change in (
        lambda each: each.update(segment=each["segment"] + 1),
        lambda each: each["arrays"].pop("ids/nodes/x/bands"),
        lambda each: each["arrays"].pop("ids/edges/edge_attr/001"),
        lambda each: each["arrays"].pop("rows/edges/edge_attr"),
        lambda each: each["arrays"]["rows/nodes/x"].update(dtype="int32"),
        lambda each: each["arrays"]["rows/nodes/x"].update(checksum="sum64:" + 16 * "1"),
        lambda each: each["schema"]["more"].append("another"),
    ):
        edit_json(root / "pack.json", change)
        with pytest.raises(StoreError):
            verify_pack(root, graph)
        (root / "pack.json").write_bytes(whole)


def test_a_pack_belongs_to_a_store_and_its_copies(root, graph, tmp_path):
    data = make_graph()
    data.x[0, 0] += 1
    with pytest.raises(StoreError, match="has changed since"):
        verify_pack(root, gnndrive.from_data(data, tmp_path / "other.gnn"))
    shutil.copytree(graph.path, tmp_path / "copy.gnn")
    verify_pack(root, gnndrive.open(tmp_path / "copy.gnn"))
