"""Small stores with random damage, and random uses of them: only gnndrive's errors are allowed.

`run(folder, seeds)` is one campaign; `test_damaged_stores.py` runs a short one.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive import ConfigError, LinkNeighborLoader, NeighborLoader, ReadError, Store, StoreError
from gnndrive.disk.row_reader import RowReader
from gnndrive.store.format import DATA_OFFSET
from tests.loader.hetero.graph import CITES, WRITES, make_data
from tests.store.test_store_fuzz import damage

ALLOWED = (StoreError, ConfigError, ReadError)
NODES, EDGES = 1_500, 9_000
OPTIONS: list[dict[str, Any]] = [
    {"topology": "mmap"},
    {"topology": "resident"},
    {"topology": "direct"},
    {"topology": "direct", "neighbour_cache": "20KB"},
    {"memory": "200MB", "sweep": 1},
    {"replace": True, "topology": "mmap"},
    {"subgraph_type": "induced"},
    {"subgraph_type": "bidirectional"},
    {"disjoint": True, "topology": "direct"},
    {"engine": "threads", "policy": "lru"},
    {"feature_dtype": "float16"},
]
TIMED: list[dict[str, Any]] = [
    {"time_attr": "time"},
    {"time_attr": "time", "temporal_strategy": "last"},
    {"weight_attr": "weight"},
]


def write(folder: Path) -> list[Path]:
    """Write the stores: of one type, and of several."""
    draw = torch.Generator().manual_seed(0)
    data = Data(
        x=torch.randn(NODES, 5, generator=draw),
        y=torch.randint(0, 7, (NODES,), generator=draw),
        edge_index=torch.randint(0, NODES, (2, EDGES), generator=draw),
        edge_attr=torch.randn(EDGES, 20, generator=draw),
        weight=torch.rand(EDGES, generator=draw),
        time=torch.randint(0, 9, (EDGES,), generator=draw),
        place=torch.randint(0, 9, (NODES, 2), generator=draw),
        train_mask=torch.rand(NODES, generator=draw) < 0.5,
    )
    given = {"homogeneous.gnn": data, "heterogeneous.gnn": make_data()}
    return [gnndrive.from_data(each, folder / name).path for name, each in given.items()]


def damage_values(content: bytes, rng: random.Random) -> bytes:
    """Change values behind the header: bits, numbers beyond all limits, their order, the length."""
    head, data = content[:DATA_OFFSET], bytearray(content[DATA_OFFSET:])
    kind = rng.randrange(7) if data else 6
    at = rng.randrange(len(data)) // 8 * 8 if data else 0
    if kind == 0:
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        for _ in range(20):
            data[rng.randrange(len(data))] = rng.randrange(256)
    elif kind == 2:
        value = rng.choice([-1, -(1 << 63), (1 << 63) - 1, 1 << 31, -1 << 31, NODES, EDGES, 0])
        data[at : at + 8] = np.int64(value).tobytes()[: len(data) - at]
    elif kind == 3:
        width = rng.choice([4, 8])
        numbers = np.frombuffer(bytes(data[: len(data) // width * width]), f"i{width}")
        order = np.random.default_rng(rng.randrange(1 << 30)).permutation(len(numbers))
        data[: len(numbers) * width] = numbers[order].tobytes()
    elif kind == 4:
        data[at : at + 4096] = bytes([rng.choice([0, 255, 127])]) * len(data[at : at + 4096])
    elif kind == 5:
        return content[: rng.randrange(len(content) + 1)]
    else:
        return content + bytes(rng.choice([1, 8, 4096]))
    return head + bytes(data)


def use(path: Path, rng: random.Random, halfway: Callable[[], None]) -> None:
    """Use a store in one way, and damage it more halfway."""
    store = gnndrive.open(path)
    if rng.random() < 0.3:
        halfway()
    way = rng.randrange(8)
    if way == 0:
        store.verify()
    elif way == 1:
        reader = RowReader(store)
        try:
            for name, info in store.info.arrays.items():
                if name.startswith(("nodes/", "edges/")):
                    count = info.shape[0]
                    rows = np.array([rng.randrange(count) for _ in range(20)], np.int64)
                    reader.read([(name, rows)])
        finally:
            reader.close()
    else:
        iterate(store, rng, halfway, links=way == 2)


def iterate(store: Store, rng: random.Random, halfway: Callable[[], None], links: bool) -> None:
    """Take some batches of a loader, and one without its pipeline."""
    given = {"batch_size": 50, "seed": rng.randrange(9), "io_depth": 16, **rng.choice(OPTIONS)}
    if rng.random() < 0.3 and not ({"subgraph_type", "replace"} & given.keys()):
        given |= rng.choice(TIMED)
    if links:
        ends = None if not store.is_hetero else rng.choice([WRITES, CITES])
        given.pop("disjoint", None)
        for name in ("time_attr", "temporal_strategy"):
            given.pop(name, None)
        loader: Any = LinkNeighborLoader(store, [4, 3], edge_label_index=ends, **given)
    else:
        first = store.all_nodes()[0]
        ids = torch.arange(first.num_nodes)
        if rng.random() < 0.5 and "train" in first.split_names:
            ids = first.split("train")
        if "time_attr" in given:
            given["input_time"] = torch.full((len(ids),), 6)
        nodes: Any = (first.type, ids) if store.is_hetero else ids
        loader = NeighborLoader(store, [4, 3], input_nodes=nodes, **given)
    with loader:
        for number, batch in enumerate(islice(loader, 4)):
            batch.validate()
            if number == 1 and rng.random() < 0.3:
                halfway()
        loader([0, 1, 2])


def run(folder: Path, seeds: Iterable[int], tell: Callable[[int], None] = lambda _: None) -> Any:
    """Damage and use a store for each seed.

    Returns:
        How often which error was raised; None: no error.

    Raises:
        AssertionError: another error was raised.
    """
    stores, found = write(folder), Counter[str | None]()
    for seed in seeds:
        tell(seed)
        rng = random.Random(seed)
        path = rng.choice(stores)
        files = sorted(each for each in path.rglob("*") if each.is_file())
        whole: dict[Path, bytes] = {}

        def change(
            rng: random.Random = rng, files: list[Path] = files, whole: dict[Path, bytes] = whole
        ) -> None:
            file = rng.choice(files)
            content = file.read_bytes()
            whole.setdefault(file, content)
            if file.suffix == ".json" or rng.random() < 0.1:
                changed = damage(content, rng, file.suffix == ".json")
            else:
                changed = damage_values(content, rng)
            overwrite(file, changed)

        try:
            if rng.random() < 0.8:
                change()
            use(path, rng, change)
            found[None] += 1
        except ALLOWED as error:
            found[type(error).__name__] += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
        finally:
            for file, content in whole.items():
                overwrite(file, content)
    return found


def overwrite(file: Path, content: bytes) -> None:
    """Write the content in place, so that maps of the file see it."""
    with open(file, "r+b") as opened:
        opened.write(content)
        os.ftruncate(opened.fileno(), len(content))
