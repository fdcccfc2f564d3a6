"""Errors for too little memory: what they name is given, and the loader then works."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData

import gnndrive
from gnndrive import ConfigError, LinkNeighborLoader, NeighborLoader, Store, Tuning
from gnndrive.plan.remedies import halves
from tests.given import moved

NODES = 4_000
GIVEN = {"num_neighbors": [10, 10], "batch_size": 16, "tuning": Tuning(io_depth=8), "seed": 1}
SINGLE = {
    **GIVEN, "tuning": Tuning(io_depth=8, samplers=1, extracting_queue=1, training_queue=1),
}  # fmt: skip


@pytest.fixture(scope="module", name="store")
def fixture_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    draw = torch.Generator().manual_seed(1)
    edges = torch.randint(NODES, (2, 10 * NODES), generator=draw)
    path = tmp_path_factory.mktemp("remedies") / "even.gnn"
    store = gnndrive.from_data(Data(x=torch.zeros(NODES, 64), edge_index=edges), path)
    gnndrive.partition(store, parts=64, method="random")
    return store


@pytest.fixture(scope="module", name="hetero")
def fixture_hetero(tmp_path_factory: pytest.TempPathFactory) -> Store:
    draw, data = torch.Generator().manual_seed(1), HeteroData()
    for name in ("paper", "author"):
        data[name].x = torch.zeros(NODES, 64)
    for type in (("author", "writes", "paper"), ("paper", "by", "author")):
        data[type].edge_index = torch.randint(NODES, (2, 10 * NODES), generator=draw)
    return gnndrive.from_data(data, tmp_path_factory.mktemp("remedies") / "types.gnn")


def applied(said: str, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a loader with those that an error tells one to give."""
    new = dict(given)
    for name in re.findall(r"\bno (\w+)=", said):
        new.pop(name, None)
        if hasattr(Tuning(), name):
            new["tuning"] = Tuning(**vars(new["tuning"]) | {name: "auto"})
    for name, value in re.findall(r"\b(\w+)=([\d\[\]]+|'\w+'|\"[\w.]+\")", said):
        found = eval(value, {})  # a number, a list or a text, as the pattern says
        if hasattr(Tuning(), name):
            new["tuning"] = Tuning(**vars(new["tuning"]) | {name: found})
        else:
            new |= moved({"strategy": new.get("strategy", "gnndrive"), name: found})
    return new


CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "staging": ("5MB", GIVEN | {"tuning": Tuning()}, "staging"),
    "staging, a pair": ("2MB", GIVEN | {"tuning": Tuning(), "batch_size": 256}, "staging"),
    "batches": ("8MB", GIVEN | {"batch_size": 512}, "live batches"),
    "a buffer": ("4.3MB", GIVEN | {"buffer": "10MB"}, ""),
    "neighbours": ("2MB", SINGLE | {"num_neighbors": [-1] * 3, "batch_size": 1}, ""),
    "queues": (
        "8MB", GIVEN | {"tuning": Tuning(io_depth=8, extracting_queue=64, samplers=16)}, "sampler",
    ),
    "topology": ("9MB", GIVEN | {"tuning": Tuning(io_depth=8, topology="direct")}, "topology"),
    "superbatches": ("4MB", GIVEN | {"strategy": "ginex:superbatch=64", "batch_size": 64}, ""),
    "superbatches apart": (
        "4MB", GIVEN | {"strategy": "ginex:superbatch=64,phases=apart", "batch_size": 64}, "",
    ),
    "as the paper": ("9MB", GIVEN | {"strategy": "gnndrive:paper=True", "batch_size": 64}, ""),
    "victims": ("4MB", GIVEN | {"strategy": "lsm-gnn", "batch_size": 64}, ""),
    "windows": ("9MB", GIVEN | {"strategy": "marius:megabatch=32"}, "window graphs"),
    "static rows": ("10MB", GIVEN | {"strategy": "hierbatching:megabatch=64"}, ""),
}  # fmt: skip


def check(make: Callable[..., NeighborLoader], given: dict[str, Any], memory: str, what: str):
    with pytest.raises(ConfigError, match="is too little for this loader") as caught:
        make(memory=memory, **given).plan()
    line = str(caught.value).partition("\n")[0]
    assert f'is the item "{what}' in line
    named, *others = line.partition(": ")[2].split(", or ")
    assert others, line
    for new in (applied(named, given | {"memory": memory}), *(applied(e, given) for e in others)):
        loader = make(**new)
        assert next(iter(loader)).num_nodes > 0
        loader.close()


@pytest.mark.parametrize("case", CASES)
def test_what_is_named_makes_the_loader_work(store: Store, case: str) -> None:
    memory, given, what = CASES[case]
    check(lambda **own: NeighborLoader(store, **own), given, memory, what)


def test_what_is_named_for_edges_and_for_types(store: Store, hetero: Store) -> None:
    check(
        lambda **own: LinkNeighborLoader(store, neg_sampling="binary", **own),
        GIVEN | {"batch_size": 256}, "8MB", "",
    )  # fmt: skip
    check(
        lambda **own: NeighborLoader(hetero, input_nodes="paper", **own),
        GIVEN | {"batch_size": 256}, "8MB", "",
    )  # fmt: skip


def test_a_pack_of_smaller_batches_works_in_memory_that_is_too_little(
    store: Store, tmp_path
) -> None:
    arguments = {"batch_size": 256, "seed": 1, "shuffle": True}
    gnndrive.pack(store, [10, 10], buffer="1MB", out=tmp_path / "large", **arguments)
    given = {"strategy": f"diskgnn:packed={tmp_path / 'large'}", "tuning": Tuning(io_depth=1)}
    with pytest.raises(ConfigError, match="pack smaller batches, or give at least memory="):
        NeighborLoader(store, [10, 10], memory="2MB", **arguments, **given).plan()
    small = arguments | {"batch_size": 16}
    gnndrive.pack(store, [10, 10], buffer="100KB", out=tmp_path / "small", **small)
    given["strategy"] = f"diskgnn:packed={tmp_path / 'small'}"
    with NeighborLoader(store, [10, 10], memory="2MB", **small, **given) as loader:
        assert next(iter(loader)).num_nodes > 0


@pytest.mark.parametrize(
    ("name", "more"), [("buffer", {}), ("device_memory", {"device": "simulated-cuda"})]
)
def test_the_buffer_that_is_named_holds_a_batch(store: Store, name: str, more) -> None:
    with pytest.raises(ConfigError) as caught:
        NeighborLoader(store, **GIVEN, **more, **{name: "100"}).plan()
    remedies = re.findall(rf'give ({name}=(?:"\S+"|0))', str(caught.value))
    assert len(remedies) == 1 + bool(more)  # a GPU's buffer may also be in host memory
    for given in remedies:
        with NeighborLoader(store, **applied(given, GIVEN | more)) as loader:
            assert next(iter(loader)).num_nodes > 0


def test_a_second_iterator_has_room_once_the_first_is_closed(store: Store) -> None:
    with NeighborLoader(store, memory="4.2MB", **GIVEN) as loader:
        first = iter(loader)
        with pytest.raises(ConfigError, match=r"has .* left: close the first iterator"):
            iter(loader)
        first.close()
        assert next(iter(loader)).num_nodes > 0


def test_halves() -> None:
    assert [list(halves(count)) for count in (1, 2, 5, 8)] == [[], [1], [4, 2, 1], [4, 2, 1]]
