"""What is free in `gnndrive bench headroom`: reads that complete without a disk, and samples that
are replayed."""

import asyncio
import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from gnndrive import NeighborLoader
from gnndrive import open as open_store
from gnndrive.cli.measure.free import FreeReads, KeptSamples, with_replaying_sampler
from gnndrive.common.errors import ClosedError
from gnndrive.common.plugins import find
from gnndrive.common.records import EngineSettings
from gnndrive.sampling.samplers.base import SamplerContext
from gnndrive.store.generate import planted_communities
from gnndrive.store.reader import Store
from gnndrive.strategies import STRATEGIES
from tests.disk.engines.conftest import Rows, drain, make_rows
from tests.given import moved
from tests.soak import product

OF_ROWS = EngineSettings(depth=4, block_bytes=65536, gives_way=True)
OF_ADJACENCY = replace(OF_ROWS, gives_way=False)


@pytest.fixture
def rows(tmp_path):
    return make_rows(tmp_path, 300, 2000)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    path = tmp_path_factory.mktemp("free") / "small.gnn"
    planted_communities(path, 600, 16, 4, degree=8, fractions={"train": 0.4})
    return open_store(path)


# ---- the engine


def job_of(rows: Rows, count: int) -> tuple[np.ndarray, Any]:
    slots = np.random.default_rng(1).permutation(2000)[:count].astype(np.int32)
    return slots, rows.table.locate(np.arange(count), slots, rows.landing)


async def test_every_row_lands_once_as_zeros_and_no_other_is_touched(rows):
    """Whatever has become of the file."""
    engine = find("engines", FreeReads).make(OF_ROWS)
    os.truncate(rows.table.path, 0)
    rows.memory[:] = 0xEE
    slots, job = job_of(rows, 1500)
    landed, failures = await drain(engine, job)
    assert (sorted(landed), failures) == (sorted(slots), [])
    assert not rows.memory[slots].any()
    assert (np.delete(rows.memory, slots, axis=0) == 0xEE).all()
    assert (engine.stats()["requests"], engine.stats()["retries"]) == (job.requests, 0)
    await engine.aclose()


async def test_the_adjacencys_engine_gives_the_true_bytes(rows):
    engine = FreeReads(OF_ADJACENCY)
    slots, job = job_of(rows, 1500)
    landed, failures = await drain(engine, job)
    assert (len(landed), failures, rows.wrong(np.arange(1500), slots)) == (1500, [], 0)
    os.truncate(rows.table.path, 0)
    landed, failures = await drain(engine, job_of(rows, 100)[1])
    assert (len(landed), {error for _, error, _ in failures}) == (0, {errno.ENODATA})
    await engine.aclose()


@pytest.mark.parametrize("settings", [OF_ROWS, OF_ADJACENCY])
async def test_closing_ends_all_jobs_and_leaves_no_descriptor(rows, settings):
    before, ended = set(os.listdir("/proc/self/fd")), []
    engine = FreeReads(settings)
    parts = np.array_split(np.arange(2000), 3)
    jobs = [rows.table.locate(part, part.astype(np.int32), rows.landing) for part in parts]
    drains = [asyncio.create_task(drain(engine, job)) for job in jobs]
    await asyncio.sleep(0)
    await asyncio.gather(engine.aclose(), engine.aclose())
    for landed, failures in await asyncio.gather(*drains):
        ended += [*landed.tolist(), *(slot for slot, _, _ in failures)]
        assert {error for _, error, _ in failures} <= {errno.ECANCELED}
    assert sorted(ended) == list(range(2000))
    assert set(os.listdir("/proc/self/fd")) <= before
    with pytest.raises(ClosedError):
        engine.read(job_of(rows, 10)[1])


def batches(store: Store, **given: Any) -> Iterator[Any]:
    given = {"buffer": "1MB", "input_nodes": store.split("train")} | given
    with NeighborLoader(
        store, [3, 2], batch_size=30, shuffle=True, seed=3, **moved(given)
    ) as loader:
        yield from loader
        yield from loader


@pytest.mark.parametrize("topology", ["resident", "mmap", "direct"])
def test_a_loader_without_a_disk_has_the_same_batches_but_for_their_rows(store, topology):
    given = {"topology": topology, "buffer": "24KB"}
    free = batches(store, **given, engine=FreeReads)
    for mine, other in zip(batches(store, **given), free, strict=True):
        assert (mine.x.any(), other.x.any()) == (True, False)
        assert all(torch.equal(mine[name], other[name]) for name in ("n_id", "edge_index", "y"))


# ---- the sampler


def same(mine: Any, other: Any) -> bool:
    return all(
        torch.equal(mine[name], other[name])
        if isinstance(mine[name], torch.Tensor)
        else mine[name] == other[name]
        for name in {*mine.keys(), *other.keys()}
    )


@product(
    "strategy,more", ["gnndrive", "ali+pg", "ginex"],
    [{"sampling": "labor", "batch_dependency": 4}, {"disjoint": True}, {}],
)  # fmt: skip
def test_replayed_batches_are_byte_for_byte_those_that_are_drawn(store, strategy, more):
    kept = KeptSamples(1 << 30)
    replaying = with_replaying_sampler(STRATEGIES[strategy], kept)
    drawn = list(batches(store, strategy=strategy, **more))
    assert all(map(same, drawn, batches(store, strategy=replaying, **more)))
    kept.keeps = False
    replayed = list(batches(store, strategy=replaying, **more))
    assert len(drawn) == len(replayed) == 16 <= kept.replayed
    assert all(map(same, drawn, replayed))


def test_what_is_not_kept_is_drawn(store):
    drawn, room = list(batches(store)), KeptSamples(1 << 30)
    list(batches(store, strategy=with_replaying_sampler(STRATEGIES["gnndrive"], room)))
    kept = KeptSamples(room.nbytes // 2)
    replaying = with_replaying_sampler(STRATEGIES["gnndrive"], kept)
    list(batches(store, strategy=replaying))
    kept.keeps = False
    assert (kept.full, 0 < kept.count < room.count, kept.nbytes <= room.nbytes // 2) == (True,) * 3
    assert all(map(same, drawn, batches(store, strategy=replaying)))
    assert 0 < kept.replayed < 16
    made = replaying.sampler.make(SamplerContext([2, 2]))
    made.stop()
    with pytest.raises(ClosedError):
        made.sample(None, 1, ())


def test_the_plan_is_that_of_the_strategy_itself(store):
    kept, given = KeptSamples(1 << 30), {"batch_size": 100, "shuffle": True, "memory": "200MB"}
    plans = []
    for strategy in ("ginex", with_replaying_sampler(STRATEGIES["ginex"], kept)):
        with NeighborLoader(store, [3, 2], **moved({"strategy": strategy, **given})) as loader:
            plans.append(str(loader.plan()))
    assert plans[0] == plans[1]
    assert kept.count == 0, "batches were drawn for the plan again"
