"""Real ranks: three processes, whose loaders exchange what they have to agree on."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch_geometric.data import Data

import gnndrive
from gnndrive import ClosedError, ConfigError, NeighborLoader, Tuning
from gnndrive.loader import sharing
from gnndrive.loader.ranks import resolve_ranks
from tests import forked
from tests.given import moved

NODES, SIZE, RANKS = 330, 16, 3


class Process:
    """This rank, and loaders of the store."""

    def __init__(self, store: str) -> None:
        self.store = gnndrive.open(store)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    @contextmanager
    def loader(self, **arguments: Any) -> Iterator[NeighborLoader]:
        given = {"batch_size": SIZE, "shuffle": True, "seed": 5, "buffer": "8MB"} | arguments
        with NeighborLoader(self.store, [4, 3], **moved(given)) as loader:
            yield loader


def a_rank_that_cannot_begin_is_an_error_on_every_rank(process: Process) -> None:
    """No rank waits for one whose loader is closed, at the first epoch and later, or whose
    arguments cannot work; then all of them can begin."""
    fails = process.rank == process.world - 1
    for epochs in range(2):
        with process.loader(ranks=True) as loader:
            for _ in range(epochs):
                assert list(loader)
            if fails:
                loader.close()
            expected = ClosedError if fails else ConfigError
            with pytest.raises(expected, match="this loader was closed") as caught:
                iter(loader)
            assert fails or str(caught.value).startswith(f"rank {process.world - 1} cannot start")
    with process.loader(ranks=True) as loader:
        loader.tuning = Tuning(topology="none such" if fails else "auto")
        with pytest.raises(ConfigError, match="none such"):
            iter(loader)
        loader.tuning = Tuning()
        assert len(list(loader)) == len(loader)
    own = {"sampler": range(200), "shuffle": False} if fails else {}
    with (
        process.loader(ranks=True, **own) as loader,
        pytest.raises(ConfigError, match="sampler= or batch_sampler= draws them here"),
    ):
        iter(loader)


def a_loader_that_one_rank_makes_again_is_an_error_on_every_rank(process: Process) -> None:
    """The ranks begin their first epoch together, so they make new loaders together too."""
    with process.loader(ranks=True) as first, process.loader(ranks=True) as again:
        assert list(first)
        again.set_epoch(1)
        made = again if process.rank == 0 else first
        with pytest.raises(
            ConfigError, match="the loader is 'one that was not begun before' on rank 0 and 'num"
        ):
            iter(made)


def loaders_begun_in_another_order_are_an_error_on_every_rank(process: Process) -> None:
    """Their arguments and epochs are the same, so nothing else tells them apart."""
    with process.loader(ranks=True) as first, process.loader(ranks=True) as second:
        assert list(first)
        assert list(second)
        with pytest.raises(
            ConfigError, match=r"number \d+ of .*' on rank 0 and .* on ranks 1, 2\. "
        ):
            iter(second if process.rank == 0 else first)
        assert list(first)
        assert list(second)


def ranks_at_different_points_are_an_error(process: Process) -> None:
    last, found = process.rank == process.world - 1, [""] * process.world
    with process.loader(ranks=True) as loader:
        if last:
            with (
                patch.object(sharing, "buffer_settings", side_effect=KeyboardInterrupt),
                pytest.raises(KeyboardInterrupt),
            ):
                iter(loader)
        points = "starting a loader on ranks 0, 1 and beginning an epoch on rank 2"
        with pytest.raises(ConfigError, match=f"the ranks are at different points: {points}"):
            iter(loader)
        if last:
            dist.all_gather_object(found, "the user's own")
        else:
            with pytest.raises(ConfigError, match="and another collective call on rank 2"):
                iter(loader)
        assert list(loader)


def the_timeout_is_the_groups(process: Process) -> None:
    group = dist.new_group(timeout=timedelta(seconds=70))
    assert [resolve_ranks(each, None).timeout_s for each in (None, True, group)] == [None, 120, 70]


CHECKS: tuple[Callable[[Process], None], ...] = (
    a_rank_that_cannot_begin_is_an_error_on_every_rank,
    a_loader_that_one_rank_makes_again_is_an_error_on_every_rank,
    loaders_begun_in_another_order_are_an_error_on_every_rank,
    ranks_at_different_points_are_an_error,
    the_timeout_is_the_groups,
)


def main() -> None:
    """Run the checks of a rank: `STORE FOLDER`."""
    world, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    with NeighborLoader(gnndrive.open(sys.argv[1]), [2], ranks=True) as early:
        dist.init_process_group(
            "gloo", f"file://{sys.argv[2]}/group", timedelta(minutes=2), world, rank
        )
        assert len(early) == -(-NODES // world), "made before there was a group"
    process = Process(sys.argv[1])
    for check in CHECKS:
        check(process)
        dist.barrier()
        if rank == 0:
            print(check.__name__, flush=True)
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # torch's gloo threads may abort a process whose interpreter exits


def test_ranks_in_processes(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    edges = torch.randint(NODES, (2, 4_000), generator=draw)
    data = Data(x=torch.randn(NODES, 8, generator=draw), edge_index=edges)
    store = gnndrive.from_data(data, tmp_path / "ranks.gnn")
    program = "from tests.loader.ranks.test_processes import main; main()"
    with ExitStack() as running:
        ranks = []
        for rank in range(RANKS):
            said = {"WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS, "RANK": rank}
            environment = {name: str(each) for name, each in said.items()}
            given = str(store.path), str(tmp_path)
            made = forked.Program(program, *given, environment=environment)
            ranks.append(running.enter_context(made))
        ended = [each.communicate() for each in ranks]
        assert ended[0][0].split() == [check.__name__ for check in CHECKS], ended
        assert [each.returncode for each in ranks] == RANKS * [0], ended
