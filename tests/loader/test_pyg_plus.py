"""PyG+: nothing of a feature buffer or a ring, and the fastest of some ways to gather by faults."""

import re
import threading
from typing import Any

import pytest

from gnndrive import ClosedError, ConfigError
from gnndrive.loader.store_loader import plan_for_ranks
from gnndrive.strategies.pyg_plus import PyGPlus, _MappedBuffers
from tests import forked
from tests.loader.batches import assert_all_same, check
from tests.loader.conftest import NODES

PYG_PLUS: dict[str, Any] = {"strategy": "pyg+", "buffer": None, "shuffle": True, "seed": 3}


def gathering() -> int:
    """How many threads of this process gather rows of maps."""
    return sum(each.name.startswith("gnndrive-mapped") for each in threading.enumerate())


def test_the_plan_has_no_buffer_and_no_ring(make):
    loader = make(**PYG_PLUS, memory="30MB")
    plan = loader.plan()
    assert [line.what for line in plan.lines] == [
        "topology", "index pointers", "input nodes", "labels", "queued samples", "sampler scratch",
        "live batches",
    ]  # fmt: skip
    assert plan.levels[0].startswith("rows: memory-mapped; the page cache")
    assert plan.topology.name == "mmap"
    assert (plan.slots, plan.fetched, plan.holds_everything) == (0, (), False)
    assert loader.compare() is plan_for_ranks(loader, 1, False).loading is None
    with pytest.raises(ConfigError, match="too little") as caught:
        make(**PYG_PLUS, memory="20KB").plan()
    found = re.search(r'at least memory="(\S+?)"', str(caught.value))
    assert found
    assert len(list(make(**PYG_PLUS, memory=found[1]))) == NODES // 16


def test_ways_are_tried_and_the_fastest_is_kept(make, data, monkeypatch):
    loader, clock = make(**PYG_PLUS, batch_size=100), [0.0]
    tried: list[tuple[int, str]] = []
    copy = _MappedBuffers._copy

    def slower(self: Any, way: tuple[int, str], *given: Any) -> None:
        tried.append(way)
        clock[0] += {(16, "normal"): 2.0, (64, "random"): 3.0}.get(way, 9.0)
        copy(self, way, *given)

    monkeypatch.setattr(_MappedBuffers, "_copy", slower)
    monkeypatch.setattr("gnndrive.strategies.pyg_plus.perf_counter", lambda: clock[0])
    for _ in range(2):
        for batch in loader:
            check(batch, data)
    assert set(tried) == set(PyGPlus().ways)
    assert set(tried[-4:]) == {(16, "normal")}
    stats = loader.stats()
    assert stats["gathering"].startswith("by 16 threads, normal; tried in the first batches, µs")
    assert tried.count((64, "random")) == 3 > tried.count((4, "random")) == 1  # it is far slower
    assert (stats["engine"], stats["topology"]) == ("page faults", "mmap")
    assert stats["batches"] == 2 * NODES // 100
    assert stats["bytes_wanted"] > 0 == stats["rows_loaded"] == stats["buffer_bytes"]
    for asked in ("pyg+:threads=2,advise=random", PyGPlus(threads=2, advise="random")):
        given = make(**PYG_PLUS | {"strategy": asked})
        list(given)
        assert given.stats()["gathering"] == "by 2 threads, random"


def test_a_state_goes_on_with_another_strategy(make):
    ours, theirs = make(**PYG_PLUS), make(seed=3, shuffle=True)
    whole = list(make(seed=3, shuffle=True))
    for loader, other in ((ours, theirs), (theirs, ours)):
        next(iter(loader))
        other.load_state_dict(loader.state_dict())
        assert_all_same(whole[1:], other)
        loader.load_state_dict(make(seed=3, shuffle=True).state_dict())
        other.load_state_dict(loader.state_dict())


def test_closing_ends_the_threads(make, data):
    """Which two iterators share; there are more batches than the queues hold."""
    loader = make(**PYG_PLUS | {"strategy": "pyg+:threads=4"}, batch_size=20)
    for batches in zip(loader, loader, strict=True):
        for batch in batches:
            check(batch, data)
    assert gathering() > 0
    iterator = iter(loader)
    next(iterator)
    loader.close()
    assert gathering() == 0
    with pytest.raises(ClosedError):
        list(iterator)


def test_a_forked_child_is_refused_and_ends(store):
    ended = forked.run(
        """
        import os, sys, gnndrive
        loader = gnndrive.NeighborLoader(
            gnndrive.open(sys.argv[1]), [4, 3], batch_size=16, strategy="pyg+")
        next(iter(loader))
        child = os.fork()
        if not child:
            try:
                next(iter(loader))
            except gnndrive.ConfigError as error:
                print("refused", flush=True)
            raise SystemExit(0)
        print(os.waitpid(child, 0)[1], len(list(loader)))
        """,
        str(store.path),
    )
    assert (ended.stdout.split(), ended.stderr) == (["refused", "0", str(NODES // 16)], "")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"strategy": "pyg+:threads=0"}, "threads=0 must be a whole number of at least 1"),
        ({"strategy": "pyg+:threads=many"}, "threads='many' must be a whole number"),
        ({"strategy": PyGPlus(threads=1000)}, "threads=1000: give at most 256"),
        ({"strategy": "pyg+:advise=willneed"}, "give 'random', 'normal' or 'auto'"),
        ({"buffer": "1MB"}, "no feature buffer, so that buffer='1MB' says nothing"),
        ({"policy": "lru"}, "policy='lru' says nothing"),
        ({"topology": "direct"}, "maps the adjacency, and topology='direct' is given"),
        ({"device": "simulated-cuda"}, "batches in host memory: leave device= and"),
        ({"device": "simulated-cuda", "device_memory": 0}, "device_memory= out, and move each"),
    ],
)
def test_what_cannot_work_is_refused(make, given, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        make(**PYG_PLUS | given).plan()
