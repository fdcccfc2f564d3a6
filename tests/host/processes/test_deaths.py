"""Whatever ends or stops in an epoch: the other ranks hear of it or go on, and nothing is left.

The host service checks the invariants of its feature buffer when it ends: an exit status of 0, and
an output without reports, say that they hold. Every rank checks at its end that nothing is left.
"""

from __future__ import annotations

import random

import pytest

from tests.host.processes.programs import SMALL
from tests.host.processes.starter import Ended
from tests.host.processes.test_ranks import alone, dealt
from tests.soak import product

pytestmark = pytest.mark.xdist_group("processes")  # one process forks all ranks


@pytest.fixture(scope="module")
def whole(store):
    """The batches of an epoch."""
    return alone(store, **SMALL)[0]


def check_ended(ended: Ended, statuses: list[int], services: list[int] | None = None) -> None:
    """Check how the ranks ended, and the services that outlived the rank that started them."""
    assert ended.statuses == statuses, ended.outputs
    if services is not None:
        assert ended.orphans == services
    assert "".join(ended.outputs) == ""


@product("how,victim", ["kill", "os._exit", "leave a child"], [0, 1])
def test_a_rank_that_dies_is_an_error_at_the_other(
    starter, store, tmp_path, whole, seeds, victim, how
):
    at = random.Random(f"{how} {seeds(1)}").randint(1, 30)
    given = {"store": str(store.path), "victim": victim, "how": how, "at": at}
    ended = starter.run("programs.one_dies", 2, tmp_path, **given)
    statuses = [0, 0]
    statuses[victim] = 3 if how == "os._exit" else -9
    children = 1 if how == "leave a child" else 0
    # The first rank's service is adopted if that rank has died.
    check_ended(ended, statuses, [0] * (children + (victim == 0)))
    found, rest = ended.results[1 - victim], dealt(whole, 2)[1 - victim]
    assert found["error"].startswith(f"PeerError: rank {victim} has died or was killed")
    assert found["batches"] == rest[: len(found["batches"])]


@product("how,victim", ["raise", "sys.exit"], [0, 1])
def test_a_rank_that_ends_its_program_leaves_its_turns(
    starter, store, tmp_path, whole, victim, how
):
    given = {"store": str(store.path), "victim": victim, "at": 5, "how": how}
    ended = starter.run("programs.one_dies", 2, tmp_path, **given)
    assert ended.statuses[victim] == (4 if how == "sys.exit" else 1)
    assert ended.statuses[1 - victim] == 0, ended.outputs
    assert all(status == 0 for status in ended.orphans)
    assert "".join(ended.outputs).count("Error") == (how == "raise")
    rest = dealt(whole, 2)[1 - victim]
    assert ended.results[1 - victim] == {"batches": rest, "error": None}


def test_the_service_dies(starter, store, tmp_path, whole):
    ended = starter.run("programs.service_dies", 3, tmp_path, store=str(store.path), at=9)
    check_ended(ended, [0, 0, 0])
    for found, rest in zip(ended.results, dealt(whole, 3), strict=True):
        assert found["error"].startswith("HostServiceError: the host service has ended, or was")
        assert found["batches"] == rest[: len(found["batches"])]
        assert found["again"] == "HostServiceError"


def test_ctrl_c_ends_the_ranks_and_then_the_service(starter, store, tmp_path):
    ended = starter.run("programs.interrupted", 3, tmp_path, store=str(store.path), at=9)
    check_ended(ended, [0, 0, 0])
    assert [found["error"] for found in ended.results] == ["KeyboardInterrupt"] * 3
    assert ended.results[2]["batches"] == 9


@pytest.mark.parametrize("service", [False, True])
def test_what_is_stopped_is_named_and_may_go_on(starter, store, tmp_path, whole, service):
    given = {"store": str(store.path), "at": 5, "service": service}
    ended = starter.run("programs.stopped", 2, tmp_path, **given)
    check_ended(ended, [0, 0])
    assert [found["batches"] for found in ended.results] == dealt(whole, 2)
    reason = "the host service does not answer" if service else "rank 1 has not taken its turn"
    assert any(reason in text for text in ended.results[0]["errors"])


@product("point,victim", ["start", "plan", "connect", "welcome", "use"], [0, 1])
def test_a_rank_dies_while_they_come_together(starter, store, tmp_path, victim, point):
    victim = 0 if point == "start" else victim  # the other one starts no service
    given = {"store": str(store.path), "victim": victim, "point": point}
    ended = starter.run("programs.one_dies_early", 2, tmp_path, **given)
    statuses = [0, 0]
    statuses[victim] = -9
    check_ended(ended, statuses)
    assert all(status == 0 for status in ended.orphans)
    # Before all ranks are welcome, torch.distributed says that one is missing.
    assert ended.results[1 - victim] == ("PeerError" if point == "use" else "RuntimeError")
