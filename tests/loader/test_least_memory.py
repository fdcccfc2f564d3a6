"""The least `memory=` that the error names works, for random settings; a hair less is refused."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData

import gnndrive
from gnndrive import ConfigError, LinkNeighborLoader, NeighborLoader, Store
from gnndrive.common.memory import parse_size

DTYPES = (torch.float32, torch.float16, torch.int8, torch.float64)


def homogeneous(draw: random.Random) -> Data:
    nodes, each = draw.choice([50, 400, 2_000]), draw.choice([1, 4, 9])
    ends = torch.rand(2, nodes * each)
    data = Data(
        x=(10 * torch.randn(nodes, draw.choice([1, 7, 130]))).to(draw.choice(DTYPES)),
        y=torch.randint(0, 9, (nodes,)),
        edge_index=torch.stack([ends[0] * nodes, ends[1] ** 4 * nodes]).long(),  # with hubs
    )
    if draw.random() < 0.4:
        data.edge_attr = torch.randn(nodes * each, draw.choice([1, 20]))
    return data


def heterogeneous(draw: random.Random) -> HeteroData:
    counts, data = {"paper": draw.choice([90, 500]), "author": draw.choice([7, 300])}, HeteroData()
    data["paper"].x = torch.randn(counts["paper"], draw.choice([1, 40]))
    data["author"].num_nodes = counts["author"]
    for source, target in (("author", "paper"), ("paper", "author"), ("paper", "paper")):
        ends = [torch.randint(0, counts[type], (800,)) for type in (source, target)]
        data[source, "to", target].edge_index = torch.stack(ends)
    return data


def settings(draw: random.Random) -> dict[str, Any]:
    fanout = [draw.choice([-1, 0, 1, 2, 5]) for _ in range(draw.choice([1, 2]))]
    given: dict[str, Any] = {
        "num_neighbors": fanout, "batch_size": draw.choice([1, 3, 32, 200]), "seed": 1,
        "shuffle": draw.random() < 0.6, "io_depth": draw.choice([1, 4, 128]),
    }  # fmt: skip
    for chance, name, values in (
        (0.3, "replace", [True]), (0.3, "disjoint", [True]), (0.3, "topology", ["direct", "mmap"]),
        (0.3, "sweep", [1, 2]), (0.3, "extracting_queue", [1, 9]), (0.3, "samplers", [1, 5]),
        (0.3, "training_queue", [1, 8]), (0.2, "in_order", [False]), (0.2, "policy", ["lru"]),
        (0.2, "feature_dtype", ["float32"]),
    ):  # fmt: skip
        if draw.random() < chance:
            given[name] = draw.choice(values)
    if not given.get("disjoint") and draw.random() < 0.3:
        given["subgraph_type"] = "bidirectional"
    return given


REVERSED = 1016  # bidirectional: an edge type has no edges but those of its reverse


@pytest.fixture(params=[*range(20), REVERSED])
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Store, type, dict[str, Any]]]:
    draw = random.Random(request.param)
    torch.manual_seed(request.param)
    data = heterogeneous(draw) if draw.random() < 0.4 else homogeneous(draw)
    store = gnndrive.from_data(data, tmp_path_factory.mktemp("least") / "graph.gnn")
    given = settings(draw)
    if draw.random() < 0.25:
        if store.is_hetero:
            given["edge_label_index"] = ("author", "to", "paper")
        yield store, LinkNeighborLoader, given | {"neg_sampling": draw.choice([None, "binary"])}
    else:
        yield store, NeighborLoader, given | {"input_nodes": "paper" if store.is_hetero else None}


def test_the_least_memory_works_and_a_hair_less_is_refused(
    case: tuple[Store, type, dict[str, Any]],
) -> None:
    store, kind, given = case
    with kind(store, memory=1, **given) as loader:
        with pytest.raises(ConfigError, match="give at least memory=") as caught:
            loader.plan()
        with pytest.raises(ConfigError, match="give at least memory="):
            iter(loader)
    named = re.search(r'at least memory="([^"]+)"', str(caught.value))
    assert named is not None
    least = parse_size(named[1], "memory")
    with (
        kind(store, memory=int(0.995 * least), **given) as loader,
        pytest.raises(ConfigError, match="is too little"),
    ):
        loader.plan()
    with kind(store, memory=named[1], **given) as loader:
        for number, _ in enumerate(loader):
            assert loader.plan().total_bytes <= least
            if number == 20:
                break
