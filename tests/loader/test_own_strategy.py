"""A strategy with a feed, a source, a tier and a cost of its own (tests/second/peer.py)."""

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from torch_geometric.nn import SAGEConv

from gnndrive import NeighborLoader, Store, StoreError
from gnndrive.common.errors import ClosedError, ConfigError
from gnndrive.plan.costs import NET
from tests.loader.batches import assert_all_same
from tests.loader.conftest import Make
from tests.second.peer import RECORD, NotSentError, Peer, WithPeer, halve

SEEDS: dict[str, Any] = {"shuffle": True, "seed": 3}
MEMORY = 8_000_000


@pytest.fixture
def strategy(store: Store, tmp_path: Path) -> Iterator[WithPeer]:
    peer = halve(store, tmp_path / "half")
    yield WithPeer(folder=tmp_path / "half", peer=peer)
    peer.close()


@pytest.fixture
def own(make: Make, strategy: WithPeer) -> Make:
    """Makes loaders with a peer."""
    return lambda **arguments: make(**{"strategy": strategy, **SEEDS} | arguments)


def tier_of(loader: NeighborLoader) -> Any:
    (table,) = loader._runtime._buffers._kept.tables.values()
    return table.tier


def test_batches_are_those_of_gnndrive(make, own, strategy):
    """Also without memory to keep rows in."""
    expected, peer = list(make(**SEEDS)), strategy.peer
    loader = own()
    assert_all_same(expected, loader)
    assert peer.sent > 0
    assert peer.surprises == 0, "the feed has announced each row"
    assert_all_same(list(make(**SEEDS | {"seed": 4})), own(seed=4))
    plan = own(memory=MEMORY).plan()
    (kept,) = (each.nbytes for each in plan.lines if each.what == "kept")
    without = own(memory=plan.host_bytes - kept)
    assert " 0 rows of the peer" in without.plan().details()
    assert_all_same(expected, without)


def test_a_model_trains(own, data):
    torch.manual_seed(0)
    model = torch.nn.ModuleList([SAGEConv(33, 16), SAGEConv(16, 7)])
    adam, losses = torch.optim.Adam(model.parameters(), lr=0.02), []
    loader = own()
    for _ in range(6):
        total = 0.0
        for batch in loader:
            hidden = model[0](batch.x, batch.edge_index).relu()
            out = model[1](hidden, batch.edge_index)[: batch.batch_size]
            loss = torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size])
            adam.zero_grad()
            loss.backward()
            adam.step()
            total += loss.item()
        losses.append(total)
    assert losses[-1] < 0.9 * losses[0]


def test_the_plan_counts_what_the_tier_takes(own):
    loader = own(memory=MEMORY)
    plan = loader.plan()
    items = {each.what: each.nbytes for each in plan.lines}
    assert 0 < items["kept"] <= 200 * (33 * 4 + 8)
    assert items["answers"] > 0
    assert plan.host_bytes <= MEMORY
    assert "rows of the peer" in plan.details()
    for _ in loader:
        pass
    tier = tier_of(loader)
    assert tier._kept.nbytes + tier._row_of.nbytes == items["kept"]
    plan = own(buffer=None, memory=MEMORY).plan()
    assert " 0 rows of the peer" in plan.details(), "slots hold all"


def test_a_second_iterator_keeps_no_rows(make, own):
    loader, expected = own(memory=MEMORY), make(**SEEDS)
    epochs = [list(expected), list(expected)]
    both = iter(loader), iter(loader)
    _, second = loader._runtime._buffers._lent
    (table,) = second.tables.values()
    assert len(table.tier._kept) == 0
    for batches, epoch in zip(both, epochs, strict=True):
        assert_all_same(epoch, batches)


def test_compare_says_what_the_network_takes(own):
    found = own(memory=MEMORY).compare()
    assert found.own.strategy == "with-peer"
    assert found.own.same_batches
    assert found.own.seconds[NET] > 0
    assert all(NET not in each.seconds for each in found.costs[1:])
    assert "with-peer" in str(found)


def test_a_state_resumes_with_any_strategy_of_these_batches(make, own):
    expected, loader = list(make(**SEEDS)), own()
    batches = iter(loader)
    for _ in range(7):
        next(batches)
    state = loader.state_dict()
    for other in (own(), make(**SEEDS)):
        other.load_state_dict(state)
        assert_all_same(expected[7:], other)


def test_a_peer_that_fails_is_an_error_of_the_batch(make, own, strategy, monkeypatch):
    loader = own()
    strategy.peer.error = ConnectionResetError("the peer is gone")
    with pytest.raises(NotSentError, match="the peer did not send rows of nodes/x"):
        list(loader)
    strategy.peer.error = None
    with monkeypatch.context() as patch:
        patch.setattr(Peer, "_send", lambda peer, table, places: peer._tables[table][:1])
        with pytest.raises(NotSentError):
            list(loader)
    loader.load_state_dict(own().state_dict())
    assert_all_same(list(make(**SEEDS)), loader)
    assert_all_same(list(make(**SEEDS)), own())
    assert_all_same(list(make(**SEEDS | {"seed": 5})), own(seed=5))
    strategy.peer.close()
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        list(own(seed=6))


def test_closing_frees_what_the_tier_keeps_also_if_the_peer_is_silent(own, monkeypatch):
    """A peer that never answers does not keep the loader from closing."""
    answers, asked = list[Future[Any]](), Event()

    def silent(peer: Peer, table: str, rows: Any) -> Future[Any]:
        answers.append(Future())
        asked.set()
        return answers[-1]

    loader = own()
    batches = iter(loader)
    next(batches)
    tier = tier_of(loader)
    assert tier._kept.nbytes > 0
    batches.close()
    monkeypatch.setattr(Peer, "ask", silent)
    batches = iter(loader)
    assert asked.wait(60)
    loader.close()
    batches.close()
    assert tier._kept.nbytes == 0
    assert all(each.cancelled() for each in answers)
    with pytest.raises(ClosedError):
        next(iter(loader))


def test_a_folder_of_another_store_is_refused(make, strategy):
    (strategy.folder / RECORD).write_text("another")
    with pytest.raises(StoreError, match="make it with halve"):
        make(strategy=strategy)
    with pytest.raises(ConfigError, match="needs folder= and peer="):
        make(strategy=replace(strategy, peer=None))
