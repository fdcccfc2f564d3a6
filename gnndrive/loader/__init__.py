"""The loaders that users iterate over, and what runs behind them when their data is a store.

`neighbor_loader` has the public classes, `store_loader` the base class of both.
docs/architecture.md follows a loader through the other modules, from its arguments to the batch. A
new argument goes into the signatures in `neighbor_loader`, `OWN_ARGUMENTS` in `arguments`, and from
there through `Assembly` into `RuntimeSettings` or `PlanRequest`. A new schedule, sampler, policy or
other plug-in needs no change here, and neither does a strategy: what one is for a loader says
`gnndrive.strategies.base`.
"""

from gnndrive.loader.neighbor_loader import LinkNeighborLoader, NeighborLoader

__all__ = ["LinkNeighborLoader", "NeighborLoader"]
