"""Real ranks, which torchrun starts: three, and then two, which go on from the state of the three.

Starting them takes seconds, so each run makes all checks, which are in `checks.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive.store.partitioned.partition import partition
from tests.loader.ranks import checks
from tests.project_files import ROOT

NODES = 330  # 21 batches, the last of which is smaller; two ranks need a pad
PARTS = 7


def test_ranks_of_torchrun(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    edges = torch.randint(NODES, (2, 4_000), generator=draw)
    y = torch.randint(3, (NODES,), generator=draw)
    data = Data(x=torch.randn(NODES, 8, generator=draw), y=y, edge_index=edges)
    store = gnndrive.from_data(data, tmp_path / "ranks.gnn")
    partition(store, PARTS, "random", "128MB")
    names = [check.__name__ for check in checks.CHECKS]
    for world in (checks.SAVING_RANKS, 2):
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        start += ["--nproc-per-node", str(world), checks.__file__, str(store.path), str(tmp_path)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        run = subprocess.run(start, capture_output=True, text=True, env=environment, check=False)
        assert run.stdout.split() == names, run.stderr
        assert run.returncode == 0, run.stderr
