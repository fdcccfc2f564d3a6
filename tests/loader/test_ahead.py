"""Strategies that sample ahead have the batches of "gnndrive", of every kind of sample."""

from collections.abc import Iterable
from itertools import islice
from typing import Any

import pytest
import torch

import gnndrive
from gnndrive import ConfigError, HGTLoader, Labor, LinkNeighborLoader, NeighborLoader, Store
from gnndrive.disk.tiers.rolled import Rolled
from gnndrive.loader.ranks import Ranks
from gnndrive.sampling.trace import Trace
from gnndrive.strategies.rolling import _LoaderRolling
from tests.given import moved
from tests.loader.batches import assert_all_same
from tests.loader.hetero.graph import WRITES
from tests.loader.hetero.graph import make_data as make_typed
from tests.loader.kinds import LINK, NODE, OTHERS, TYPED
from tests.store.packed.packs import make_graph

BATCHES, TAKEN, SUPERBATCH = 14, 9, 4
KINDS: dict[str, dict[str, Any]] = {
    **OTHERS,
    "labor": NODE | {"sampling": Labor(5)},
    **{f"typed {name}": given for name, given in TYPED.items()},
    "typed hgt": {"num_samples": [30, 10], "input_nodes": "paper"},
    "typed labels": LINK | {"edge_label_index": WRITES, "edge_label": torch.rand(600, 3),
                            "exclude_seed_edges": "reverse"},
}  # fmt: skip


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Store]:
    """By whether it is heterogeneous."""
    folder = tmp_path_factory.mktemp("ahead")
    graphs = {False: make_graph(), True: make_typed()}
    return {typed: gnndrive.from_data(data, folder / f"{typed}.gnn")
            for typed, data in graphs.items()}  # fmt: skip


@pytest.fixture(autouse=True)
def always_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass over a table as small as these does not pay."""
    monkeypatch.setattr(_LoaderRolling, "pays", lambda *given: True)


def assert_same_batches(found: Iterable[Any], expected: Iterable[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert_all_same(one.stores, other.stores)


def found_rows(loader: Any) -> int:
    tiers = [table.tier for table in loader._runtime._buffers._kept.tables.values()]
    return sum(tier.found_rows for tier in tiers if isinstance(tier, Rolled))


@pytest.mark.parametrize("kind", KINDS)
def test_the_batches_are_those_of_gnndrive(stores, kind, monkeypatch, stack):
    """Also after a state among them. Their records are no larger than planned."""
    store, arguments = stores[kind.startswith("typed")], KINDS[kind] | {"batch_size": 3}
    links, samples = "edge_label_index" in arguments, "num_samples" in arguments
    made: Any = HGTLoader if samples else LinkNeighborLoader if links else NeighborLoader

    def loader(name: str, **more: Any) -> Any:
        given = arguments | {"seed": 3, "shuffle": True, "io_depth": 16, "buffer": "1MB"} | more
        return stack.enter_context(made(store, **moved(given | {"strategy": name})))

    drawn, most = loader("gnndrive"), 0
    nbytes = sum(each.batch_rows_max * each.row_bytes for each in drawn.plan().tables)
    expected, put = list(islice(drawn, BATCHES)), Trace._put_record

    def measured(trace: Trace, *sample: Any) -> bool:
        nonlocal most
        before = trace.nbytes
        written = put(trace, *sample)
        most = max(most, trace.nbytes - before)
        return written

    monkeypatch.setattr(Trace, "_put_record", measured)
    for name in ("ginex", "rolling"):
        given = {"buffer": nbytes, "superbatch": SUPERBATCH, "samplers": 1}
        first, rest = (loader(name, **given) for _ in range(2))
        batches = iter(first)
        assert_same_batches(islice(batches, TAKEN), expected[:TAKEN])
        rest.load_state_dict(first.state_dict())
        del batches
        assert_same_batches(islice(rest, BATCHES - TAKEN), expected[TAKEN:])
        request = rest._assembly().request()
        assert 0 < most <= request.ahead.record_bytes(request.planned)
    assert found_rows(first) + found_rows(rest) > 0 or not arguments.get("num_neighbors", True)
    again = loader("rolling", buffer=nbytes, superbatch=SUPERBATCH, reuse=2)
    seeds = again._assembly().batches(Ranks(), 3, 0, 0)
    order = [each.number for _, each in islice(seeds, 2 * SUPERBATCH)]
    assert_same_batches(islice(again, 2 * SUPERBATCH), [expected[number] for number in order])


@pytest.mark.parametrize("form", [(600, 2, 2), (600,)])
def test_labels_that_cannot_be_recorded(stores, form, stack):
    labels = torch.zeros(form, dtype=torch.bfloat16 if len(form) == 1 else None)
    given = LINK | {"edge_label_index": WRITES, "edge_label": labels, "batch_size": 3}
    loader = stack.enter_context(
        LinkNeighborLoader(stores[True], **moved(given | {"strategy": "ginex", "buffer": "1MB"}))
    )
    with pytest.raises(ConfigError, match="give one or two dimensions, and float32"):
        next(iter(loader))
