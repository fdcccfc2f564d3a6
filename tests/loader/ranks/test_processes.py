"""Real ranks: three processes, and then two, which go on from the state of the three.

They are forked with the environment that torchrun gives, and make all checks of `checks.py`.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import torch
from torch_geometric.data import Data

import gnndrive
from tests import forked
from tests.loader.ranks import checks

NODES = 330  # 21 batches, the last of which is smaller; two ranks need a pad


def test_ranks_in_processes(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    edges = torch.randint(NODES, (2, 4_000), generator=draw)
    y = torch.randint(3, (NODES,), generator=draw)
    data = Data(x=torch.randn(NODES, 8, generator=draw), y=y, edge_index=edges)
    store = gnndrive.from_data(data, tmp_path / "ranks.gnn")
    for world in (checks.SAVING_RANKS, 2):
        names = [check.__name__ for check in checks.checks_of(world)]
        with ExitStack() as running:
            ranks = [
                running.enter_context(
                    forked.Program(
                        "from tests.loader.ranks import checks; checks.main()",
                        str(store.path), str(tmp_path),
                        environment={
                            "WORLD_SIZE": f"{world}", "LOCAL_WORLD_SIZE": f"{world}",
                            "RANK": f"{rank}", "LOCAL_RANK": f"{rank}",
                        },
                    )
                )
                for rank in range(world)
            ]  # fmt: skip
            ended = [each.communicate() for each in ranks]
            assert ended[0][0].split() == names, ended
            assert [each.returncode for each in ranks] == world * [0], ended
