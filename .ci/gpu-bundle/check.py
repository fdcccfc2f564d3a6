"""For run.sh: do packages come from the bundle? With --epoch, load an epoch of its graph."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
STORE = HERE / "store"
NEEDED = ("numpy", "torch", "torch_geometric", "scipy", "psutil")


def check_origin() -> None:
    """Exit if a package is missing, or one of the bundle comes from elsewhere."""
    if missing := [name for name in NEEDED if not find_spec(name)]:
        sys.exit(f"{sys.executable} lacks {', '.join(missing)}: set PYTHON to a Python that has it")
    for name in ("gnndrive", "cffi", "pytest"):
        origin = import_module(name).__file__ or ""
        if not Path(origin).resolve().is_relative_to(HERE):
            sys.exit(f"{name} was imported from {origin}, not from the bundle: start run.sh")


def load_epoch() -> None:
    """Load one epoch with a small buffer, compare each row with the file; exit at a wrong row."""
    import numpy as np

    import gnndrive

    store = gnndrive.open(STORE)
    store.verify()
    rows = np.load(STORE / "nodes" / "x.npy", mmap_mode="r")
    with gnndrive.NeighborLoader(
        store, [5, 5], store.split("train"), batch_size=100, seed=0, buffer="8MB", device="cpu"
    ) as loader:
        for number, batch in enumerate(loader):
            if not np.array_equal(batch.x.numpy(), rows[batch.n_id.numpy()]):
                sys.exit(f"batch {number} holds rows of other nodes than its own")
        stats = loader.stats()
    print(f"checked: an epoch of {stats['batches']} batches, {stats['rows']} rows, ", end="")
    print(f"{stats['rows_loaded']} of them read by {stats['engine']}, all as in the store")


if __name__ == "__main__":
    check_origin()
    if sys.argv[1:] == ["--epoch"]:
        load_epoch()
