"""The published designs that a loader runs as `strategy=`, a file each.

Each class is a frozen dataclass whose fields are the design's own arguments; its docstring says
what the paper does and where this differs:

- `GNNDrive`, and what it is compared with: `Ginex`, `AliPG`, `LSMGNN`, whose batches are the same;
- `DiskGNN`, which replays batches that `gnndrive.pack` recorded;
- `HierBatching` and `Marius`, which sample inside the windows of a partitioned store;
- `PyGPlus`, the baseline of all: memory-mapped files, and the page cache.

What several of them share, or what is too long for one file, lies in a folder: `superbatches`
(batches that are sampled ahead), `packs` (recorded batches), `windows`. `base` has what a strategy
is for a loader. A new strategy is a file, and a line in `_CLASSES`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_CLASSES = {
    "GNNDrive": "gnndrive",
    "Ginex": "ginex",
    "Rolling": "rolling",
    "AliPG": "ali_pg",
    "LSMGNN": "lsm_gnn",
    "DiskGNN": "diskgnn",
    "HierBatching": "hierbatching",
    "Marius": "marius",
    "PyGPlus": "pyg_plus",
}
"""The class of each strategy, and its file here; the default one first."""
_OF_BASE = ("Strategy", "strategy", "batches_of")

__all__ = ["STRATEGIES", *_CLASSES, *_OF_BASE]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import a class when it is first used, because the loaders import this folder's `base`."""
    if name in _CLASSES:
        found = getattr(import_module(f"gnndrive.strategies.{_CLASSES[name]}"), name)
    elif name in _OF_BASE:
        found = getattr(import_module("gnndrive.strategies.base"), name)
    elif name == "STRATEGIES":
        made = [__getattr__(each)() for each in _CLASSES]
        found = {each.name: each for each in made}
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found
