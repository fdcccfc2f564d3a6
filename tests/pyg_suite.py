"""PyTorch Geometric's own tests, run against gnndrive's classes in place of PyG's.

usage: python tests/pyg_suite.py CHECKOUT [pytest's arguments]

CHECKOUT is a copy of PyG's repository; none of it is in this project. Before anything is collected,
PyG's loaders and samplers are replaced by ours. The tests skip themselves without pyg-lib, so an
empty package of that name is put on the path, with the signature that they look for: whatever calls
it fails. Variants with induced subgraphs are told that torch-sparse is there. The tests of
HGTLoader, which skip themselves without torch-sparse, get what they need of it to check a batch.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

TESTS = (
    "test/loader/test_neighbor_loader.py",
    "test/loader/test_link_neighbor_loader.py",
    "test/loader/test_hgt_loader.py",
    "test/loader/test_zip_loader.py",
    "test/loader/test_mixin.py",
    "test/loader/test_imbalanced_sampler.py",
    "test/data/lightning/test_datamodule.py",
    "test/data/test_feature_store.py",
    "test/sampler/test_sampler_neighbor_sampler.py",
)
STUB = '''"""Stands where pyg-lib would, and can do nothing."""
from types import SimpleNamespace


def neighbor_sample(edge_time=None, edge_weight=None):
    raise NotImplementedError("this is not pyg-lib")


ops = SimpleNamespace()
sampler = SimpleNamespace(neighbor_sample=neighbor_sample)
'''


class Edges:
    """What the tests of HGTLoader ask of torch-sparse's SparseTensor."""

    def __init__(self, row: Any, col: Any, value: Any) -> None:
        self._row, self._col, self._value = row, col, value
        self.storage = self

    def __getitem__(self, nodes: Any) -> "Edges":
        rows, cols = (each.tolist() for each in nodes)
        to_row, to_col = ({node: place for place, node in enumerate(each)} for each in (rows, cols))
        found = [
            (to_row[row], to_col[col], value)
            for row, col, value in zip(*(each.tolist() for each in self.coo()), strict=True)
            if row in to_row and col in to_col
        ]
        return Edges(*torch.tensor(found, dtype=torch.int64).view(-1, 3).T)

    def coo(self) -> Any:
        return self._row, self._col, self._value

    def row(self) -> Any:
        return self._row

    def col(self) -> Any:
        return self._col

    def value(self) -> Any:
        return self._value

    def nnz(self) -> int:
        return len(self._row)


def pytest_collection_modifyitems(items: Any) -> None:
    """Have the tests of HGTLoader run."""
    for item in items:
        if item.path.name == "test_hgt_loader.py":
            item.own_markers = [mark for mark in item.own_markers if mark.name != "skipif"]
            item.module.SparseTensor = Edges


def pytest_configure() -> None:
    """Replace PyG's classes; pytest calls this before it collects."""
    import torch_geometric.data.lightning
    import torch_geometric.loader
    import torch_geometric.sampler.neighbor_sampler
    import torch_geometric.typing

    import gnndrive.pyg.bidirectional

    torch_geometric.typing.WITH_TORCH_SPARSE = True
    torch_geometric.loader.NeighborLoader = gnndrive.NeighborLoader
    torch_geometric.loader.LinkNeighborLoader = gnndrive.LinkNeighborLoader
    torch_geometric.loader.HGTLoader = gnndrive.HGTLoader
    torch_geometric.loader.ImbalancedSampler = gnndrive.ImbalancedSampler
    torch_geometric.data.lightning.LightningNodeData = gnndrive.LightningNodeData
    torch_geometric.data.lightning.LightningLinkData = gnndrive.LightningLinkData
    torch_geometric.sampler.NeighborSampler = gnndrive.NeighborSampler
    module = torch_geometric.sampler.neighbor_sampler
    module.NeighborSampler = gnndrive.NeighborSampler
    module.BidirectionalNeighborSampler = gnndrive.pyg.bidirectional.BidirectionalNeighborSampler


def main() -> int:
    """Run them; returns pytest's exit status."""
    if len(sys.argv) < 2 or not (Path(sys.argv[1]) / TESTS[0]).is_file():
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        stub = Path(folder) / "pyg_lib"
        stub.mkdir()
        (stub / "__init__.py").write_text(STUB, encoding="utf-8")
        # Alone, or the checkout's own torch_geometric would come before the installed one.
        shutil.copytree(Path(sys.argv[1]) / "test", Path(folder) / "test")
        path = [folder, str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        command = [sys.executable, "-m", "pytest", "-p", "pyg_suite", "-rsx", *TESTS]
        return subprocess.run(
            command + sys.argv[2:],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))},
            check=False,
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
