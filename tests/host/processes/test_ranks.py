"""Ranks that share a feature buffer yield one process's batches, bit for bit."""

import random
import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive import ConfigError
from gnndrive.host.connection import ask
from gnndrive.store.row_classes import row_classes
from tests.host.processes import programs
from tests.host.processes.programs import SEVERAL, alone, dealt
from tests.loader.hetero.graph import make_data
from tests.soak import product

pytestmark = pytest.mark.xdist_group("processes")  # one process forks all ranks

Run = Callable[..., Any]
NODES = 130  # 9 batches, the last of which is smaller
ALL = "of all, which exchange rows"
SEPARATE = "with host_service=False each rank"


def test_two_ranks_in_many_ways(run, store, whole):
    ended = run("much", 2, store=str(store.path))
    train, valid = alone(store, 4), alone(store, 2, shuffle=False, input_nodes=range(50))
    for rank, found in enumerate(ended.results):
        assert found == {
            "train": [dealt(epoch, 2)[rank] for epoch in train[:2]],
            "valid": [dealt(epoch, 2)[rank] for epoch in valid],
            "broken off": dealt(train[2], 2)[rank][: 1 + rank],
            "begun": dealt(train[3], 2)[rank][:2],
            "resumed": dealt(train[3], 2, done=4)[rank],
            "kept": dealt(whole, 2)[rank][: 1 if rank else None],
        }


def test_several_tables_none_seed_edges_and_topologies(run, store, without_x, tmp_path_factory):
    of_types = gnndrive.from_data(make_data(), tmp_path_factory.mktemp("types") / "ranks.gnn")
    typed = {"input_nodes": "paper", "buffer": "60KB"}
    links = {"links": True, "num_neighbors": [3], "neg_sampling": "binary", "batch_size": 200}
    ahead = typed | {"strategy": "rolling", "batch_size": 4}
    asked = [(of_types, typed), (of_types, ahead), (store, links), (without_x, {}), (store, {})]
    given = [{"store": str(each.path), **arguments} for each, arguments in asked]
    given[-1]["topology"] = ["resident", "direct", "resident"]
    row_classes(of_types, "paper", "degree")  # ranks that make them at once warn of it
    ended = run("several", 3, asked=given)
    whole = [epoch for each, arguments in asked for epoch in alone(each, **arguments)]
    assert ended.results == [[dealt(epoch, 3)[rank] for epoch in whole] for rank in range(3)]


def test_ranks_of_a_service_by_hand(run, store, serve):
    """They share a buffer there, and start no service."""
    serving = serve()
    ended = run("ranks_of_a_service", 2, name=serving.name)
    left = ask(serving.address)
    assert ended.orphans == []
    (whole,) = alone(store)
    assert [found["batches"] for found in ended.results] == dealt(whole, 2)
    group = ended.results[0]["clients"][0][2]
    for found in ended.results:
        assert sorted(found["clients"]) == [[0, 2, group], [1, 2, group]]
        assert (found["engine"], found["started"]) == ("host service", [])
    assert (left.total, left.used) == (0, sum(left.graphs.values()))


# ---- what they cannot share


@pytest.fixture
def other(tmp_path) -> str:
    data = Data(x=torch.zeros(330, 8), edge_index=torch.zeros(2, 5, dtype=torch.int64))
    return str(gnndrive.from_data(data, tmp_path / "other.gnn").path)


def test_a_rank_with_other_arguments(run, store, other):
    asked = [
        ("memory", "40MB", "50MB"), ("buffer", "100KB", "90KB"),
        ("num_neighbors", [4, 3], [4, 2]), ("io_depth", 32, 64), ("extractors", 2, 3),
        ("host_service", True, False), ("host_service", "auto", False), ("in_order", True, False),
        ("engine", "threads", "simulated"), ("store", str(store.path), other),
    ]  # fmt: skip
    ended = run("differing", 2, store=str(store.path), asked=asked)
    assert ended.results[0] == ended.results[1]
    named = {"store": "the store"}
    for text, (name, *_) in zip(ended.results[0], asked, strict=True):
        said = (f"{named.get(name, name)} is", "rank 0", "rank 1", "Give all ranks the same arg")
        assert [each in text for each in ("ConfigError: ", *said)] == [True] * 5
        more = name == "store"  # its nodes
        assert text.count(" on rank 0 and ") == 1 + more, "only the argument is named"


def test_a_difference_between_the_ranks_of_one_host_is_an_error_on_all_hosts(run, store):
    given = {"asked": [("io_depth", 32, 64)], "hosts": ["first", "second", "second"]}
    ended = run("differing", 3, store=str(store.path), **given)
    for (text,) in ended.results:
        assert "differ in: io_depth is 32 on rank 1 and 64 on rank 2. Give all" in text


def test_a_service_that_cannot_start(run, store, other, tmp_path):
    copy = shutil.copytree(store.path, tmp_path / "copy.gnn")
    ended = run("never_starting", 2, store=str(copy), other=other)
    reasons = [
        "No such file", "has ended before it answered", "sys.executable", "serves another store",
        "ulimit -n",
    ]  # fmt: skip
    first, second = ended.results
    for reason, *texts in zip(reasons, first, second, strict=True):
        assert all(reason in text for text in texts)
        assert all(text.startswith(("ConfigError: ", "LimitError: ")) for text in texts)
        own = reason in ("serves another store", "ulimit -n")
        assert own or all(SEPARATE in text for text in texts)
    assert first[-1].startswith("ConfigError: rank 1 cannot start")
    assert second[0].startswith("ConfigError: rank 0 cannot start")


@pytest.mark.parametrize("arguments", [{}, {"ranks": None, "in_order": False}])
def test_one_rank_has_no_service(store, arguments):
    with (
        programs.loader(store, **arguments) as loader,
        pytest.raises(ConfigError, match="host_service=True cannot be had, because there is one"),
    ):
        iter(loader)


# ---- they leave an epoch, or one of them, or the service, ends or stops


@pytest.mark.parametrize("buffer", ["of their host", "of a service by hand", "of each rank", ALL])
def test_ways_to_leave_an_epoch(run, store, serve, buffer):
    """Each ends with what the ranks would yield otherwise, or with an error on all of them."""
    name = f"gnndrive://{serve().name}" if "by hand" in buffer else str(store.path)
    shared, given = buffer != "of each rank", {"host_service": buffer not in ("of each rank", ALL)}
    if buffer == ALL:  # the others cannot go on without the rows of a rank that closes its loader
        given |= {"exchange": True, "without": ["close", "delete"]}
    ended = run("leaving", 2, store=name, **given)
    epochs, other = alone(store, 2, **SEVERAL), alone(store)[0]
    gave_way = "ClosedError: another iterator of this loader was begun"
    kept = {"keep": gave_way, "resume": gave_way, "all resume": gave_way} if shared else {}
    if shared:
        kept["keep, then another loader"] = "ClosedError: rank 0 went on with this epoch while this"
    kept["close"] = "ClosedError: the loader was closed in the middle of this epoch"
    closed = "ConfigError: rank 1 cannot start: this loader was", "ClosedError: this loader was"
    for rank, found in enumerate(ended.results):
        first, second, others = [dealt(epoch, 2)[rank] for epoch in (*epochs, other)]
        begun = {
            "close": closed[rank],
            "delete": first,
            "resume": "the number of batches done is 0 on rank 0 and 2 on rank 1",
            "all resume": dealt(epochs[0], 2, done=2)[rank],
            "all keep, then another loader": others,
            "keep, then another loader": others,
            "drop, then another loader on one rank": "the loader is 'number",
        }
        for way, (taken, again, rest) in found.items():
            left = way != "finish" and (rank == 1 or "all" in way)
            assert taken == (first[:1] if left else first), way
            check_came(again, begun.get(way, second))
            if rest is not None:
                check_came(rest, kept.get(way, first[1:]))


def check_came(found: list[str] | str, expected: list[str] | str) -> None:
    """Check batches, or what an error says."""
    if isinstance(expected, str):
        assert expected in found
    else:
        assert found == expected


@product("how,victim", ["kill", "leave a child", "sys.exit", "kill, own buffers"], [0, 1])
def test_a_rank_that_is_killed_is_an_error_at_the_other_and_one_that_ends_leaves_its_turns(
    run, store, whole, seeds, victim, how
):
    # Of 33 batches: one that dies later may have taken its last turn, and the other ends well.
    at = random.Random(f"{how} {seeds(1)}").randint(1, 15)
    own = how == "kill, own buffers"
    given = {"store": str(store.path), "victim": victim, "how": how, "at": at}
    given["host_service"] = not own
    ended = run("one_ends", 2, victim, 4 if how == "sys.exit" else -9, **given)
    found, rest = ended.results[1 - victim], dealt(whole, 2)[1 - victim]
    assert found.pop("again").startswith(("RuntimeError: ", "PeerError: "))
    if own or how == "sys.exit":
        assert found == {"batches": rest, "error": None}
        return
    # The first rank's service is adopted if that rank has died.
    assert len(ended.orphans) == (how == "leave a child") + (victim == 0)
    assert found["error"].startswith(f"PeerError: rank {victim} has died or was killed")
    assert found["batches"] == rest[: len(found["batches"])]


def test_the_service_dies(run, store, whole):
    ended = run("service_dies", 3, store=str(store.path), at=9)
    for found, rest in zip(ended.results, dealt(whole, 3), strict=True):
        assert found["error"].startswith("HostServiceError: the host service has ended, or was")
        assert found["batches"] == rest[: len(found["batches"])]
        assert found["again"].startswith("HostServiceError")


def test_ctrl_c_ends_the_ranks_and_then_the_service(run, store):
    ended = run("interrupted", 3, store=str(store.path), at=9)
    assert [found["error"] for found in ended.results] == ["KeyboardInterrupt: "] * 3
    assert len(ended.results[2]["batches"]) == 9


@pytest.mark.parametrize("service", [False, True])
def test_what_is_stopped_is_named_and_may_go_on(run, store, whole, service):
    ended = run("stopped", 2, store=str(store.path), at=5, service=service)
    assert [found["batches"] for found in ended.results] == dealt(whole, 2)
    reason = "the host service does not answer" if service else "rank 1 has not taken its turn"
    assert any(reason in text for text in ended.results[0]["errors"])


def test_ranks_that_take_batches_of_different_loaders_do_not_wait_without_end(run, store):
    ended = run("crossed", 2, store=str(store.path))
    for rank, text in enumerate(ended.results):
        assert f"(rank {1 - rank} has not taken its turn; it may" in text


@product("point,victim", list(programs.POINTS), [0, 1])
def test_a_rank_dies_while_they_come_together(run, store, victim, point):
    victim = 0 if point == "start" else victim  # the other one starts no service
    ended = run("one_dies_early", 2, victim, store=str(store.path), victim=victim, point=point)
    # Before all ranks are welcome, torch.distributed says that one is missing.
    expected = "PeerError: " if point == "use" else "RuntimeError: "
    assert ended.results[1 - victim].startswith(expected)
