"""Print what the bundle finds on this machine; with --epoch, load an epoch of its graph on the CPU.

The bundle's run.sh calls this after it has unpacked the wheels and set PYTHONPATH.
"""

from __future__ import annotations

import sys
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
STORE = HERE / "store"


NEEDED = ("numpy", "torch", "torch_geometric", "scipy", "psutil")


def check_origin() -> None:
    """Exit if the machine lacks a package, or if a package of the bundle comes from elsewhere."""
    if missing := [name for name in NEEDED if not find_spec(name)]:
        sys.exit(f"{sys.executable} lacks {', '.join(missing)}: set PYTHON to a Python that has it")
    for name in ("gnndrive", "cffi", "pytest"):
        origin = import_module(name).__file__ or ""
        if not Path(origin).resolve().is_relative_to(HERE):
            sys.exit(f"{name} was imported from {origin}, not from the bundle: start run.sh")


def describe() -> str:
    """Describe versions, the GPU and the engine, one line each."""
    import torch

    from gnndrive.disk.engines import why_not_uring

    cuda = torch.cuda.is_available()
    reason = why_not_uring()
    try:
        cupy = import_module("cupy").__version__ if find_spec("cupy") else "none"
    except Exception as error:  # such as a CuPy for another CUDA
        cupy = f"none that works ({error})"
    lines = {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "cupy": cupy,
        "gpu": torch.cuda.get_device_name() if cuda else "none that torch sees",
        "engine": "uring" if reason is None else f"threads: {reason}",
    }
    return "\n".join(f"{name:<7}: {text}" for name, text in lines.items())


def load_epoch() -> str:
    """Load one epoch with a small buffer, compare each row with the file; exit at a wrong row."""
    import numpy as np

    import gnndrive

    store = gnndrive.open(STORE)
    store.verify()
    rows = np.load(STORE / "nodes" / "x.npy", mmap_mode="r")
    began = time.perf_counter()
    with gnndrive.NeighborLoader(
        store,
        [5, 5],
        store.split("train"),
        batch_size=100,
        seed=0,
        buffer="8MB",
        device="cpu",
    ) as loader:
        for number, batch in enumerate(loader):
            if not np.array_equal(batch.x.numpy(), rows[batch.n_id.numpy()]):
                sys.exit(f"batch {number} holds rows of other nodes than its own")
        stats = loader.stats()
    return (
        f"checked: an epoch of {stats['batches']} batches, {stats['rows']} rows, "
        f"{stats['rows_loaded']} of them read by {stats['engine']}, all as in the store, "
        f"in {time.perf_counter() - began:.1f} s"
    )


if __name__ == "__main__":
    check_origin()
    print(describe(), flush=True)
    if sys.argv[1:] == ["--epoch"]:
        print(load_epoch())
