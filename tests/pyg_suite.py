"""PyTorch Geometric's own tests, run against gnndrive's classes in place of PyG's.

usage: python tests/pyg_suite.py CHECKOUT [pytest's arguments]

CHECKOUT is a copy of PyG's repository; none of it is in this project. Before anything is collected,
PyG's loaders and samplers are replaced by ours. The tests skip themselves without pyg-lib, so an
empty package of that name is put on the path, with the signature that they look for: whatever calls
it fails. Variants with induced subgraphs are told that torch-sparse is there.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = (
    "test/loader/test_neighbor_loader.py",
    "test/loader/test_link_neighbor_loader.py",
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
