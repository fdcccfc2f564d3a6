"""Loaders of independent jobs on one service: their batches, and that only the graph is shared."""

import asyncio
import gc
import shutil
import weakref
from itertools import islice
from typing import Any

import pytest
import torch

import gnndrive
from gnndrive import ConfigError, LinkNeighborLoader, StoreError
from gnndrive.buffer.policies.lru import LRU
from gnndrive.host import service
from gnndrive.host.connection import ask
from gnndrive.sampling.topologies.resident import Resident
from gnndrive.store.shards import write_shards
from tests.given import moved
from tests.host.conftest import MEMORY, NODES
from tests.host.processes.programs import digest
from tests.loader.windows.stores import make_graph
from tests.loader.windows.stores import make_store as make_windows
from tests.store.test_store_added import add

ASKED_MAX = 10_000  # times that a service is asked until it has got a message


def digests(batches: Any) -> list[str]:
    return [digest(batch) for batch in batches]


def item(plan: Any, what: str) -> Any:
    return next(line for line in plan.lines if line.what == what)


async def test_batches_are_those_of_a_loader_without_a_service(serve, load, store, without_x):
    for served, own in (
        (load(f"gnndrive://{serve().name}"), load(store)),
        (load(gnndrive.connect(serve(without_x).name)), load(without_x)),
        (load(f"gnndrive://{serve().name}", pad=4), load(store, pad=4)),
    ):
        assert digests(served) == digests(own)
        assert [digest(batch) async for batch in served] == digests(own)
        assert served.stats()["engine"] == "host service" != own.stats()["engine"]
    links = {"batch_size": 64, "neg_sampling": "binary", "seed": 3, "buffer": "60KB"}
    with (
        LinkNeighborLoader(gnndrive.connect(serve().name), [3], **moved(links)) as of_service,
        LinkNeighborLoader(store, [3], **moved(links)) as alone,
    ):
        assert digests(of_service) == digests(alone)
        assert of_service.stats()["engine"] == "host service"


def test_a_service_reads_the_stripes_of_its_store(serve, load, store, tmp_path, monkeypatch):
    monkeypatch.setattr("gnndrive.store.striped.format.STRETCH_BYTES_MIN", 16 * 160)
    own = digests(load(store))
    disks = [tmp_path / "disk0", tmp_path / "disk1"]
    for disk in disks:
        disk.mkdir()
    striped = gnndrive.open(shutil.copytree(store.path, tmp_path / "striped.gnn"))
    gnndrive.stripe(striped, disks)
    table = striped.table("x")
    with open(table.path, "r+b") as file:  # who reads the store's own rows gets others
        file.seek(table.data_offset)
        file.write(bytes(NODES * table.row_bytes))
    assert digests(load(gnndrive.connect(serve(striped).name))) == own


def test_windows_of_a_partitioned_store(serve, load, tmp_path):
    """Their rows and graphs are in the job's share of the service."""
    store = make_windows(make_graph(), tmp_path)
    name, given = serve(store).name, {"strategy": "hierbatching:megabatch=3", "buffer": "1MB"}
    served = load(gnndrive.connect(name), **given)
    assert digests(served) == digests(load(store, **given))
    assert served.stats()["engine"] == "host service"
    plan = served.plan()
    assert plan.share_bytes >= item(plan, "held rows").nbytes + item(plan, "window graphs").nbytes


def test_a_part_of_a_divided_store(serve, load, store, tmp_path):
    """Without the other parts, a job has what is there whole."""
    _, part = write_shards(store, tmp_path, 2)
    served = gnndrive.connect(serve(part).name)
    with pytest.raises(ConfigError, match=r"is part 1 of 2 of a store .* give ranks=True"):
        digests(load(served))
    with pytest.raises(ConfigError, match=r"is part 1 of 2 of a store .* use the whole store"):
        load(served, strategy="hierbatching")
    without = {"attrs": ["y"], "buffer": None}
    assert digests(load(served, **without)) == digests(load(store, **without))


def test_a_job_does_not_wait_for_another_ones_user(serve, load, store):
    opened, whole = gnndrive.connect(serve().name), digests(load(store))
    idle, busy = load(opened), load(opened)
    stalled = iter(idle)
    first = [digest(next(stalled))]
    for _ in range(2):
        busy.set_epoch(0)
        assert digests(busy) == whole
    assert first + digests(stalled) == whole


def test_nothing_is_left_of_a_loader_that_has_left(serve, load):
    """What a group has refers to itself; the service does not wait for Python to find that."""
    serving = serve()

    async def closed():
        while serving.service._tasks:
            await asyncio.wait(serving.service._tasks)

    gc.collect()
    gc.disable()
    try:
        with load(gnndrive.connect(serving.name)) as loader:
            next(iter(loader))
            [ranks] = serving.service._groups.values()
            left = [weakref.ref(each) for each in (ranks.group, ranks.buffer)]
            del ranks
        serving.call(closed)
        assert [each() for each in left] == [None, None]
    finally:
        gc.enable()


def test_the_graph_is_there_once(serve, load):
    serving = serve()
    one, other = gnndrive.connect(serving.name), gnndrive.connect(serving.name)
    loaders = [load(one), load(other), load(other, topology="mmap")]
    first, *others = [digests(islice(each, 2)) for each in loaders]
    assert others == [first, first]
    assert list(ask(serving.address).graphs) == ["resident"]
    for each in loaders:
        assert item(each.plan(), "index pointers").host_bytes == 0
        assert item(each.plan(), "labels").host_bytes == 0
    assert item(loaders[0].plan(), "topology").host_bytes == 0
    assert loaders[0]._runtime.adjacency.topologies[0].in_memory is not None
    assert one.index_pointers.base is not None


def test_a_job_may_use_the_graph_that_its_memory_is_too_small_for(serve, load, monkeypatch):
    monkeypatch.setattr("gnndrive.sampling.topologies.base.GraphSize.packed_bytes", 10**8)
    opened = gnndrive.connect(serve(memory=10**9).name)
    plan = load(opened, buffer=None, memory="4MB", batch_size=4, io_depth=1).plan()
    assert plan.topology.name == "resident"
    assert plan.host_bytes <= 4_000_000
    assert "because the service has 100 MB of indices for all loaders" in plan.details()


# ---- tables that are not those that the service's store had when it was opened


def test_a_store_whose_features_the_job_has_set(serve, load, store):
    opened, own = gnndrive.connect(serve().name), gnndrive.open(store.path)
    x = torch.arange(NODES * 5.0).view(NODES, 5)
    opened.x, own.x = x, x.clone()
    served = load(opened)
    assert digests(served) == digests(load(own))
    assert served.stats()["engine"] == "host service"


def test_an_attribute_that_was_computed_again(serve, load, store, tmp_path):
    copied = gnndrive.open(shutil.copytree(store.path, tmp_path / "copy.gnn"))
    first = torch.arange(NODES * 20.0).view(NODES, 20)
    serving = serve(gnndrive.open(copied.path))
    add(copied, first, run="0" * 16)  # meanwhile
    old, other = gnndrive.connect(serving.name), gnndrive.connect(serving.name)
    batches = iter(load(old, buffer="100KB"))
    next(batches)
    add(copied, -first, run="1" * 16)
    batch = next(iter(load(gnndrive.connect(serving.name), buffer="100KB")))
    assert torch.equal(batch.h, -first[batch.n_id])
    for batch in batches:  # an epoch that has begun goes on
        assert torch.equal(batch.h, first[batch.n_id])
    with pytest.raises(StoreError, match=r"nodes/h of .* was replaced since this process opened "):
        iter(load(other, buffer="100KB"))
    other.find_added()
    batch = next(iter(load(other, buffer="100KB")))
    assert torch.equal(batch.h, -first[batch.n_id])


# ---- memory


def test_a_share_is_what_the_plan_says(serve, load):
    serving = serve()
    loader = load(gnndrive.connect(serving.name), memory="5MB", buffer=None)
    plan = loader.plan()
    marks = {line.split()[0]: line for line in plan.details().splitlines()}
    for what, whose in (("staging", "service"), ("queued", "process"), ("labels", "once")):
        assert f" {whose} " in marks[what]
    next(iter(loader))
    report = ask(serving.address)
    (client,) = report.clients
    assert client.share == plan.share_bytes > plan.buffer_bytes + item(plan, "staging").nbytes
    assert report.used == plan.share_bytes + sum(report.graphs.values())
    assert report.left == MEMORY - report.used
    own = sum(item(plan, what).host_bytes for what in ("queued samples", "live batches"))
    assert plan.share_bytes + own <= plan.host_bytes <= 5_000_000


def test_without_a_budget_a_job_takes_a_quarter_of_what_is_left(serve, load, store):
    rows = 40 * 4 + 38
    memory = 4 * 100 * rows + 3_000_000
    serving = serve(memory=memory)
    opened = gnndrive.connect(serving.name)
    buffers = {"buffer": None, "memory": None, "io_depth": 1}
    assert load(opened, **buffers).plan().slots == min(memory // 4 // rows, store.num_nodes)
    serving.call(serving.service.budget.take, "other", "other", 3_000_000)
    assert load(opened, **buffers).plan().slots == 100
    assert load(store, **buffers).plan().slots == store.num_nodes


def test_a_job_that_does_not_fit_is_refused(serve, load, store):
    opened = gnndrive.connect(serve(memory=6_000_000).name)
    first, second = load(opened), load(opened)
    next(iter(first))
    with pytest.raises(ConfigError) as raised:
        iter(second)
    for said in (
        "of --memory 6 MB left: ", "the graph with topology='resident' has",
        f"has {first.plan().share_bytes / 1e6:.3g} MB",
        ". Most of it is staging: give the loader less with tuning=Tuning(io_depth=…), end ",
    ):  # fmt: skip
        assert said in str(raised.value)
    first.close()
    assert digests(second) == digests(load(store))  # what the first job had is left again


def test_a_graph_that_does_not_fit_is_refused(serve, load):
    share = load(gnndrive.connect(serve().name)).plan().share_bytes
    serving = serve(memory=share + 2_000)  # the graph takes more
    loader = load(gnndrive.connect(serving.name), topology="resident")
    with pytest.raises(ConfigError, match="the graph with topology='resident' needs") as raised:
        iter(loader)
    remedy = 'with more --memory, or give the loader tuning=Tuning(topology="direct")'
    assert str(raised.value).endswith(remedy)
    assert ask(serving.address).used == 0


# ---- what cannot go through the service


OWN_POLICY, OWN_TOPOLOGY = (type("Own", (each,), {"name": "own"}) for each in (LRU, Resident))


@pytest.mark.parametrize(
    ("arguments", "shares_graph", "shares_buffer"),
    [
        ({"host_service": False}, False, False),
        ({"device": "simulated-cuda"}, True, False),
        ({"in_order": False}, True, False),
        ({"strategy": "ginex"}, True, False),
        ({"policy": OWN_POLICY}, True, False),
        ({"topology": OWN_TOPOLOGY}, False, True),
    ],
)
def test_other_loaders_share_less(serve, load, store, arguments, shares_graph, shares_buffer):
    serving = serve()
    with load(gnndrive.connect(serving.name), **arguments) as loader:
        assert sorted(digests(loader)) == sorted(digests(load(store)))
        assert (loader.stats()["engine"] == "host service") is shares_buffer
        report = ask(serving.address)
        assert list(report.graphs) == ["resident"] * shares_graph
        shares = [client.share > 0 for client in report.clients]
        assert shares == [shares_buffer] * (shares_graph or shares_buffer)
        assert item(loader.plan(), "topology").copies == (not shares_graph)


def test_a_service_that_must_and_cannot_is_refused(serve, load, monkeypatch):
    opened = gnndrive.connect(serve().name)
    sampler = torch.utils.data.DistributedSampler(range(opened.num_nodes), 2, 0)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    dealt = {"sampler": sampler, "shuffle": False, "num_neighbors": [2]}
    with pytest.raises(
        ConfigError, match=r"cannot be had, because a sampler deals .* ranks= is no"
    ):
        load(opened, host_service=True, **dealt).plan()
    assert "service" not in str(load(opened, **dealt).plan())
    with pytest.raises(ConfigError, match="cannot be had, because with phases='apart' each rank"):
        load(opened, host_service=True, strategy="ginex:phases=apart").plan()


# ---- the status, and the end


def test_a_report_counts_what_clients_do(serve, load, monkeypatch):
    serving = serve()
    opened = gnndrive.connect(serving.name)
    one, other = load(opened), load(opened)
    count = len(digests(one))
    monkeypatch.setattr("sys.argv", [])  # as in a program that embeds Python
    next(iter(other))
    for _ in range(ASKED_MAX):  # the last batch may still be on its way back
        report = ask(serving.address)
        first, second = report.clients
        if first.batches == count:
            break
    assert (first.batches, first.nbytes) == (count, one.stats()["bytes_read"])
    assert (second.batches < count, second.name) == (True, "python")
    assert (first.rank, first.ranks, report.total) == (0, 1, 2)
    assert first.group != second.group
    one.close()
    assert [each.group for each in ask(serving.address).clients] == [second.group]
    *came, left = serving.said
    assert len(came) == 2
    assert f"has come, for {one.plan().share_bytes / 1e6:.3g} MB: " in came[0]
    assert left.endswith(" has left")


def test_many_clients_come_in_pages(serve, load, monkeypatch):
    monkeypatch.setattr(service, "PAGE_CLIENTS", 2)
    serving = serve(memory=None)
    opened = gnndrive.connect(serving.name)
    for loader in [load(opened, device="simulated-cuda") for _ in range(5)]:
        next(iter(loader))
    report = ask(serving.address)
    assert len({client.group for client in report.clients}) == 5 == report.total


def test_a_draining_service_serves_those_that_are_here(serve, load):
    serving = serve()
    opened = gnndrive.connect(serving.name)
    train = load(opened)
    iterator = iter(train)
    first = digest(next(iterator))
    serving.call(serving.service.drain)
    assert ask(serving.address).draining
    with load(opened) as valid:  # of the same process
        whole = digests(valid)
    assert [first, *digests(iterator)] == whole
    serving.service._allowed = set()  # as if it were another process
    with pytest.raises(ConfigError, match="the service is ending: it accepts no more loaders but"):
        iter(load(opened))
    assert not serving.service.ended.is_set()
    train.close()
    serving.call(serving.service.ended.wait)
