"""Ranks that draw from the same windows get one process's batches, and read rows once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gnndrive import Store
from tests.host.processes import programs
from tests.host.processes.programs import alone, loader
from tests.loader.windows.stores import make_graph, make_store

pytestmark = pytest.mark.xdist_group("processes")  # one process forks all ranks

Run = Callable[..., Any]
WINDOWS: dict[str, Any] = {
    "strategy": "hierbatching:megabatch=3,static=0.01", "batch_size": 16,
    "input_nodes": list(range(700)), "buffer": "1MB", "io_depth": 16,
}  # fmt: skip


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return make_store(make_graph(), tmp_path_factory.mktemp("windows"))


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_share_the_rows_of_windows(run, windows, world):
    asked = [WINDOWS | {"store": str(windows.path)}]
    asked.append(asked[0] | {"strategy": "marius:megabatch=4"})
    ended = run("in_windows", world, asked=asked, done=3)
    for number, given in enumerate(asked):
        own = {name: value for name, value in given.items() if name != "store"}
        whole = alone(windows, 2, **own)
        found = [result[number] for result in ended.results]
        for epoch, batches in enumerate(whole):
            steps = zip(*[each["epochs"][epoch] for each in found], strict=True)
            dealt = [batch for step in steps for batch in step]
            assert dealt[: len(batches)] == batches
            assert len(dealt) - len(batches) < world
        assert [each["resumed"] for each in found] == [each["epochs"][1][3:] for each in found]
        with loader(windows, ranks=None, host_service="auto", **own) as resumed:
            resumed.load_state_dict(found[0]["state"])
            assert [programs.digest(batch) for batch in resumed] == whole[1][3 * world :]
        with loader(windows, ranks=None, host_service="auto", **own) as one:
            list(one)
            rows = one.stats()["rows_loaded"]
        for each in found:
            assert each["engine"] == "host service"
            once = ("feature buffer", "held rows", "window graphs")
            assert [each["copies"][item] for item in once] == [1, 1, 1]
            assert each["rows"][0] == rows < each["rows"][1] <= 2 * rows


def test_windows_of_their_own(run, windows):
    """Whose ranks share nothing, or each of which has all windows for itself."""
    given = WINDOWS | {"store": str(windows.path), "host_service": False}
    own = given | {"strategy": f"{WINDOWS['strategy']},per_rank=True"}
    shared, apart = zip(*run("in_windows", 2, asked=[given, own], done=3).results, strict=True)
    (whole,) = alone(windows, **WINDOWS)
    steps = zip(*[each["epochs"][0] for each in shared], strict=True)
    assert [batch for step in steps for batch in step][: len(whole)] == whole
    assert not {*apart[0]["epochs"][0]} & {*apart[1]["epochs"][0]}
    assert [each["state"]["dealt_to"] for each in (*shared, *apart)] == [None, None, 2, 2]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_is_an_error_at_the_other(run, windows, victim):
    given = {name: value for name, value in WINDOWS.items() if name != "batch_size"}
    given |= {"store": str(windows.path), "input_nodes": list(range(0, 700, 5))}
    ended = run("one_ends", 2, victim, victim=victim, how="kill", at=9, **given)
    found = ended.results[1 - victim]
    assert found["error"].startswith(f"PeerError: rank {victim} has died or was killed")
    assert found["again"].startswith(("RuntimeError: ", "PeerError: "))


def test_the_service_is_killed_or_cannot_read_a_graph(run, windows, tmp_path):
    given = {name: value for name, value in WINDOWS.items() if name != "batch_size"}
    given["input_nodes"] = list(range(0, 700, 5))
    for found in run("service_dies", 2, store=str(windows.path), at=9, **given).results:
        assert found["error"].startswith("HostServiceError: the host service has ended, or was")
    store = make_store(make_graph(), tmp_path)
    (codes,) = Path(store.path).glob("partitioned/*/indices.npy")
    with codes.open("r+b") as file:
        file.seek(-4, 2)
        file.write(b"\xff" * 4)
    ended = run("one_ends", 2, store=str(store.path), victim=2, at=0, how="", **given)
    for found in ended.results:
        assert f"StoreError: {codes} has the code -1" in found["error"]
