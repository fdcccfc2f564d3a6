"""The loaders that users iterate over, and what runs behind them when their data is a store.

In the order in which a loader uses the modules, from its arguments to the batch:

- `neighbor_loader`: `NeighborLoader` and `LinkNeighborLoader`, the public classes.
- `arguments`: checks of their arguments; the names and defaults of gnndrive's own arguments.
- `seeds`: checks of the arguments that say what the seeds are.
- `store_loader`: `StoreLoader`, the base class of both: planning, iterating, resuming, closing.
- `ranks`: `Ranks`, which rank this process is and who deals batches to the ranks.
- `epoch_state`: `EpochState`, how far an epoch has come, and its form in `state_dict`.
- `assembly`: `Assembly` makes schedule, sampler, plan and settings; `drawing` draws batches for it.
- `epoch_assembly`: `EpochAssembly` makes an epoch's inputs and batches.
- `settings`: `RuntimeSettings`, what the assembly decides and the runtime is made from.
- `runtime`: `Runtime` owns threads, files, engine and buffers, starts epochs, and counts.
- `buffer_pool`: `BufferPool` lends each running epoch a feature buffer.
- `sharing`: what a host service has for a loader in its place, or for several ranks.
- `tracing` opens the timeline of `trace=` and adds counters to it.
- `strategy_choice` predicts what strategies cost, and chooses one for "auto".
- `iterator`: `BatchIterator`, what `iter(loader)` returns; calls the user's `on_stats`, too.

`lightning` has `LightningNodeData` and `LightningLinkData`, `imbalanced_sampler` a sampler.

A new argument goes into the signatures in `neighbor_loader`, `OWN_ARGUMENTS` in `arguments`, and
from there through `Assembly` into `RuntimeSettings` or `PlanRequest`. A new schedule, sampler,
policy or other plug-in needs no change here, and neither does a strategy: what one is for a loader
says `gnndrive.strategies.base`.
"""

from gnndrive.loader.neighbor_loader import LinkNeighborLoader, NeighborLoader

__all__ = ["LinkNeighborLoader", "NeighborLoader"]
