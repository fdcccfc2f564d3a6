"""Unknown names, wherever users give one: the error says which one may be meant."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data, HeteroData

import gnndrive
from gnndrive import ConfigError, HGTLoader, Labor, LinkNeighborLoader, NeighborLoader, Tuning
from gnndrive.cli.commands.loader_options import parse_tuning
from gnndrive.cli.commands.strategy_runs import parse_choice
from gnndrive.common.names import Arguments
from gnndrive.strategies import DiskGNN, Ginex, Strategy

EDGES = torch.tensor([[0, 1], [1, 2]])


@pytest.fixture(scope="module", name="store")
def fixture_store(tmp_path_factory):
    data = Data(x=torch.zeros(3, 2), edge_index=EDGES, train_mask=torch.ones(3, dtype=torch.bool))
    return gnndrive.from_data(data, tmp_path_factory.mktemp("names") / "one.gnn")


@pytest.fixture(scope="module", name="hetero")
def fixture_hetero(tmp_path_factory):
    data = HeteroData()
    data["paper"].x = torch.zeros(3, 2)
    data["paper", "cites", "paper"].edge_index = EDGES
    return gnndrive.from_data(data, tmp_path_factory.mktemp("names") / "hetero.gnn")


LOADING = {
    "batch_size": lambda store: NeighborLoader(store, [2], batchsize=2),
    "num_neighbors": lambda store: NeighborLoader(store, [2], num_neighbours=[2]),
    "edge_label_index": lambda store: LinkNeighborLoader(store, [2], edge_labels_index=EDGES),
    "io_depth": lambda store: NeighborLoader(store, [2], iodepth=4),
    "ginex": lambda store: NeighborLoader(store, [2], strategy="gnex"),
    "superbatch": lambda store: NeighborLoader(store, [2], strategy="ginex:superbatchs=256"),
    "belady": lambda store: NeighborLoader(store, [2], tuning=Tuning(policy="beladi")),
    "uring": lambda store: NeighborLoader(store, [2], tuning=Tuning(engine="urign")),
    "x": lambda store: NeighborLoader(store, [2], attrs=["X"]),
    "train": lambda store: store.split("trian"),
    "train_mask": lambda store: store.train_masks,
    "nodes/x": lambda store: store.table("node/x"),
    "time_attr": lambda store: gnndrive.NeighborSampler(store, [2], timeattr="t"),
}  # fmt: skip


@pytest.mark.parametrize("meant", LOADING)
def test_names_of_a_loader_and_of_its_store(store, meant):
    with pytest.raises((ConfigError, AttributeError, TypeError)) as raised:
        LOADING[meant](store)
    assert f" (did you mean {meant}?)" in str(raised.value)


def test_names_of_a_loader_over_data_in_memory():
    data = Data(x=torch.zeros(3, 2), edge_index=EDGES)
    with pytest.raises(
        ConfigError, match=r"NeighborLoader has no .* \(did you mean batch_size\?\)"
    ):
        NeighborLoader(data, [2], batchsize=2)


TYPES = {
    "paper": lambda store: NeighborLoader(store, [2], ("papers", None)),
    "cites": lambda store: store["cits"],
    "num_samples": lambda store: HGTLoader(store, [2], "paper", num_sample=[2]),
}


@pytest.mark.parametrize("meant", TYPES)
def test_names_of_types(hetero, meant):
    with pytest.raises(ConfigError) as raised:
        TYPES[meant](hetero)
    assert f" (did you mean {meant}?)" in str(raised.value)


OBJECTS = {
    "io_depth": lambda: Tuning(io_depht=4),
    "dependency": lambda: Labor(dependancy=2),
    "superbatch": lambda: Ginex(superbatches=256),
    "packed": lambda: DiskGNN(pack=Path()),
    "policy": lambda: Strategy(polices="lru"),
}


@pytest.mark.parametrize("meant", OBJECTS)
def test_names_of_arguments_of_objects(meant):
    with pytest.raises(ConfigError, match=rf" has no .* \(did you mean {meant}\?\); it has: "):
        OBJECTS[meant]()


def test_an_own_constructor_of_a_strategy_takes_its_own_arguments():
    class Own(Strategy):
        def __init__(self, size):
            super().__init__(name=f"own {size}")

    class Free(Strategy):
        def __init__(self, **given):
            super().__init__(name=given["any"])

    assert (Own(size=2).name, Free(any="x").name) == ("own 2", "x")


def test_the_nearest_name_is_said_only_if_there_is_one():
    @dataclass(frozen=True)
    class Sizes(Arguments):
        width: int = 1

    with pytest.raises(ConfigError, match=r"^Sizes has no argument qqq; it has: width$"):
        Sizes(qqq=2)
    assert Sizes(width=3) == Sizes(3)


@pytest.mark.parametrize(
    ("parse", "meant"),
    [
        (lambda: parse_tuning("topologie=direct"), "topology"),
        (lambda: parse_choice("gnex"), "ginex"),
        (lambda: parse_choice("ginex:superbatches=2"), "superbatch"),
    ],
)  # fmt: skip
def test_names_in_options_of_commands(parse, meant):
    with pytest.raises(ConfigError) as raised:
        parse()
    assert f" (did you mean {meant}?)" in str(raised.value)
