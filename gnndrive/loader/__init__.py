"""The loaders that users iterate over, and what runs behind them when their data is a store.

docs/architecture.md follows a loader through these modules, from its arguments to the batch. A new
argument goes into the signatures in `neighbor_loader`, `OWN_ARGUMENTS` in `arguments`, and from
there through `Assembly` into `RuntimeSettings` or `PlanRequest`. A plug-in or a strategy needs no
change here.
"""

from gnndrive.loader.neighbor_loader import LinkNeighborLoader, NeighborLoader

__all__ = ["LinkNeighborLoader", "NeighborLoader"]
