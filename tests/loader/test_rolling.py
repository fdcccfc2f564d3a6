"""strategy="rolling": the batches of "gnndrive", whatever happens to their copies."""

import os
import random
import re
import resource
from collections.abc import Sequence
from itertools import islice
from typing import Any

import pytest
from torch.utils.data import DistributedSampler

from gnndrive import NeighborLoader
from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import parse_size
from gnndrive.disk.tiers.rolled import Rolled
from gnndrive.loader.ranks import Ranks
from gnndrive.strategies.rolling import Rolling, _LoaderRolling
from gnndrive.strategies.superbatches import scheme
from tests.loader.batches import assert_all_same, assert_same, skewed_store
from tests.loader.conftest import NODES
from tests.soak import SOAKING
from tests.store.kills import CREATING, calls_of, killed_at

COMMON: dict[str, Any] = {"seed": 5, "shuffle": True, "buffer": "30KB"}
ROLLING: dict[str, Any] = COMMON | {"strategy": "rolling", "superbatch": 6}
DRAWN: dict[str, Sequence[Any]] = {
    "num_neighbors": [(4, 3), (3,), (2, 2, 2)], "batch_size": [16, 10], "shuffle": [True, False],
    "drop_last": [False, True], "replace": [False, True], "feature_dtype": [None, "float16"],
    "engine": ["auto", "threads", "simulated"], "samplers": [4, 1, 2], "extractors": [4, 1],
    "training_queue": ["auto", 3], "gap": [None, 0],
}  # fmt: skip


@pytest.fixture(autouse=True)
def always_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass over a table as small as this one does not pay."""
    monkeypatch.setattr(_LoaderRolling, "pays", lambda *given: True)


def found_rows(loader: NeighborLoader) -> int:
    (table,) = loader._runtime._buffers._kept.tables.values()
    assert isinstance(table.tier, Rolled)
    return table.tier.found_rows


def places(loader: NeighborLoader, epoch: int = 0) -> list[int]:
    """Which batches of the same epoch of "gnndrive" the loader's are, with the seed 5."""
    assembly = loader._assembly()
    batches = assembly.batches(assembly.ranks, 5, epoch, 0)
    return [seeds.number // assembly.ranks.world for _, seeds in batches]


def test_the_batches_are_those_of_gnndrive(make, tmp_path, seeds):
    """Of whole epochs, of one that is left, of one that is resumed, and of two at once."""
    for seed in seeds(2):
        draw, columns = random.Random(seed), 8 * (4 + seed % 3)
        given = COMMON | {name: draw.choice(values) for name, values in DRAWN.items()}
        given["data"] = skewed_store(tmp_path / f"{seed}.gnn", 400, 4_000, columns, seed)
        given["buffer"] = 230 * 4 * columns
        ahead = given | {"strategy": "rolling", "superbatch": draw.choice([6, 3, 16, "auto"])}
        rolling, resumed, plain = make(**ahead), make(**ahead), make(**given)
        assert_all_same(rolling, plain)
        whole = found_rows(rolling)
        for count in (draw.randint(0, len(plain)), 1):
            assert_all_same(islice(rolling, count), islice(plain, count))
        batches, expected = iter(rolling), iter(plain)
        taken = draw.randint(1, len(plain) - 1)
        assert_all_same(islice(batches, taken), islice(expected, taken))
        assert rolling.state_dict() == plain.state_dict()
        resumed.load_state_dict(rolling.state_dict())
        for one, other, batch in zip(resumed, batches, expected, strict=True):
            assert_same(one, batch)
            assert_same(other, batch)
        for one, other, *expected in zip(rolling, rolling, plain, plain, strict=True):
            assert_same(one, expected[0])
            assert_same(other, expected[1])
        assert found_rows(rolling) > 1.5 * whole > 0


REPEATED: dict[str, dict[str, Any]] = {
    "shuffled": {}, "in order": {"shuffle": False, "drop_last": True},
    "batch sampler": {
        "batch_size": 1, "shuffle": False,
        "batch_sampler": [[*range(first, first + 7 + first % 9)] for first in range(0, 350, 16)],
    },
    "sampler of ranks": {
        "sampler": DistributedSampler(range(NODES), 2, 1, shuffle=False), "shuffle": False,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", REPEATED)
def test_batches_come_again(make, kind, seeds):
    """Superbatch for superbatch, in another order each time; each is sampled once. A state resumes
    at any of them."""
    for seed in seeds(2):
        draw, given = random.Random(seed), COMMON | REPEATED[kind]
        size, reuse = draw.choice([4, 5, 9, 40]), draw.choice([2, 3])
        ahead = given | {"strategy": Rolling(superbatch=size, reuse=reuse)}
        loader, resumed, once = make(**ahead), make(**ahead), make(**given)
        count = len(once)
        assert len(loader) == reuse * count
        for epoch in range(2):
            plain, order = [*once], places(loader, epoch)
            for first in range(0, count, size):
                together = [*range(first, min(first + size, count))]
                for turn in range(reuse):
                    start = reuse * first + turn * len(together)
                    found = order[start : start + len(together)]
                    assert (found if turn == 0 else sorted(found)) == together
            taken, batches = draw.randint(1, len(order) - 1), iter(loader)
            assert_all_same(islice(batches, taken), (plain[n] for n in order[:taken]))
            state = loader.state_dict()
            assert_all_same(batches, (plain[n] for n in order[taken:]))
            assert loader.stats()["samples"] == count * (epoch + 1)
        assert order != places(loader, 0)
        assert found_rows(loader) > 0
        resumed.load_state_dict(state)
        assert_all_same(resumed, (plain[n] for n in order[taken:]))
        with pytest.raises(ConfigError, match=r"strategy was 'rolling.* and is 'gnndrive'"):
            once.load_state_dict(state)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"reuse": 2, "superbatch": "auto"}, "give a number"),
        ({"reuse": 0}, "reuse=0"),
        ({"reuse": 2, "superbatch": 20}, "superbatch=20 with reuse=2 .* smaller superbatch="),
    ],
)
def test_what_cannot_come_again(make, given, match, monkeypatch):
    monkeypatch.setattr(scheme, "free_bytes", lambda folder: 100_000)
    with pytest.raises(ConfigError, match=match):
        make(**ROLLING | given).plan()


def test_batches_that_are_dealt_to_ranks_do_not_come_again(make):
    assembly = make(**ROLLING, reuse=2)._assembly()
    with pytest.raises(ConfigError, match="leave reuse= out"):
        assembly.scheme.schedule_context(assembly.schedule_context(5), Ranks(1, 2, "loader"))


def test_a_disk_without_room_for_copies_is_a_warning(make, tmp_path, seeds):
    """Also if there is no room for a sample."""
    next(iter(make(**ROLLING)))  # the classes of rows are kept from now on
    for seed in seeds(4):
        loader = make(**ROLLING, folder=tmp_path, reuse=1 + 2 * (seed % 8 > 1))
        order, plain = places(loader), [*make(**COMMON)]
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        room = [0, 120_000, 5_000, 20_000][seed % 4]
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
        try:
            with pytest.warns(
                RuntimeWarning, match=rf"(full|room) .*{tmp_path}.* folder="
            ) as warned:
                assert_all_same(loader, (plain[number] for number in order))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert len(warned) == 1
        assert found_rows(loader) == 0


@pytest.mark.soak(times=7)
def test_killed_before_any_call(make, tmp_path, seeds):
    """Nothing is left of it in the folder."""

    def run() -> None:
        with make(**ROLLING, folder=tmp_path) as loader:
            for count in (9, 3, 25):
                list(islice(loader, count))

    calls = calls_of(run, CREATING)
    for seed in seeds(3 if SOAKING else 1):
        assert killed_at(run, random.Random(seed).randint(1, calls // 2), CREATING)
        assert os.listdir(tmp_path) == []


def test_the_least_memory_that_is_named_works(make):
    """Although with more of it, blocks and parts of the table are larger."""
    given = ROLLING | {"buffer": None}
    with pytest.raises(ConfigError, match="too little") as refused:
        make(**given, memory="1KB").plan()
    (least,) = re.findall(r'at least memory="(\S+)"', str(refused.value))
    assert make(**given, memory=least).plan().host_bytes <= parse_size(least, "memory")


def test_the_last_superbatch_is_not_the_only_short_one(make, monkeypatch):
    sizes, size = list[int](), _LoaderRolling.size
    monkeypatch.setattr(
        _LoaderRolling, "size", lambda *given: sizes.append(size(*given)) or sizes[-1]
    )
    loader = make(**ROLLING | {"superbatch": 20, "batch_size": 8})
    assert len(list(loader)) == 50
    assert sizes == [2, 16, 16, 16]
    request = loader._assembly().request()
    assert [new for new, _ in request.ahead.sizes(request.planned)] == sizes


@pytest.mark.parametrize("policy", ["lru", "belady"])
def test_a_policy_that_does_not_keep_rows_for_good_is_refused(make, policy):
    with pytest.raises(ConfigError, match="leave policy= out"):
        make(**ROLLING, policy=policy).plan()
