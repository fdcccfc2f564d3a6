"""After random damage to a file, a store either raises StoreError or works."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from gnndrive.common.errors import StoreError
from gnndrive.store import open

CASES = 2000
PIECES = [
    b"-1",
    b"0",
    b"null",
    b"1e999",
    b'"',
    b"{",
    b"[",
    b"]}",
    b"9" * 40,
    b"true",
    b"../",
    b"\\ud800",
]


def damage(content: bytes, rng: random.Random, text: bool) -> bytes:
    """Flip, cut, repeat or replace bytes, mostly at the beginning, where the headers are."""
    data = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        at = rng.randrange(max(1, len(data) if text or rng.random() < 0.5 else 160))
        kind = rng.randrange(6)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(data):
            data[at] = rng.randrange(256)
        elif kind == 2:
            del data[at : at + rng.choice([1, 1, 8, 100])]
        elif kind == 3:
            data[at:at] = data[at : at + rng.choice([1, 8, 100])]
        elif kind == 4:
            piece = rng.choice(PIECES)
            data[at : at + rng.choice([0, 1, len(piece)])] = piece
        elif rng.random() < 0.2:
            del data[at:]
    return bytes(data)


def use(path: Path) -> None:
    """Open a store, check all that a successful `open` promises, and verify it."""
    store = open(path)
    repr(store), repr(store.info), store.info.as_dict()
    assert store.indptr[0] == 0
    assert store.indptr[-1] == store.num_edges == len(store.indices)
    for name, array in store.info.arrays.items():
        assert store.array(name).shape == array.shape
        assert tuple(store.tensor(name).shape) == array.shape
        assert store.table(name).row_bytes >= 0
    for name in store.split_names:
        ids = store.split(name)
        assert not len(ids) or (ids.min() >= 0 and ids.max() < store.num_nodes)
    store.verify()


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory, make) -> Path:
    path = tmp_path_factory.mktemp("fuzz") / "store"
    make(path)
    return path


@pytest.mark.parametrize(
    "file",
    ["store.json", "graph/indptr.npy", "graph/indices.npy", "splits/train.npy", "nodes/x.npy"],
)
def test_random_damage(victim: Path, file: str) -> None:
    rng = random.Random(file)
    whole = (victim / file).read_bytes()
    refused: list[str] = []
    try:
        for _ in range(CASES):
            (victim / file).write_bytes(damage(whole, rng, file.endswith(".json")))
            try:
                use(victim)
            except StoreError as error:
                refused.append(str(error))
    finally:
        (victim / file).write_bytes(whole)
    assert len(refused) > CASES // 2
    for message in refused:
        assert str(victim) in message
        message.encode()  # can be printed
    use(victim)


def test_random_missing_files(tmp_path: Path, make) -> None:
    rng = random.Random(1)
    make(tmp_path / "whole")
    files = sorted(file.relative_to(tmp_path / "whole") for file in (tmp_path / "whole").rglob("*"))
    for case in range(60):
        path = tmp_path / str(case)
        shutil.copytree(tmp_path / "whole", path)
        for file in rng.sample(files, rng.choice([1, 2])):
            target = path / file
            if target.is_dir():
                shutil.rmtree(target)
            elif target.exists():
                target.unlink()
        with pytest.raises(StoreError):
            use(path)
