"""gnndrive trains graph neural networks on graphs far larger than memory, from one SSD.

    import gnndrive
    from gnndrive import NeighborLoader     # was: from torch_geometric.loader import NeighborLoader

    store = gnndrive.open("papers100M.gnn")
    for batch in NeighborLoader(store, [10, 10, 10], store.split("train"), batch_size=1024):
        ...

It runs the pipeline of GNNDrive (ICPP 2024). docs/architecture.md says which file does what.
`help(gnndrive.NeighborLoader)` describes all arguments, and `help(gnndrive.loader)` lists the
modules through which a batch goes.
"""

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from gnndrive.common.errors import ClosedError, ConfigError, GNNDriveError, ReadError, StoreError
from gnndrive.inference import infer
from gnndrive.loader.imbalanced_sampler import ImbalancedSampler
from gnndrive.loader.neighbor_loader import LinkNeighborLoader, NeighborLoader
from gnndrive.loader.packing import pack
from gnndrive.pyg.sampler import NeighborSampler
from gnndrive.store.arrays import write_store
from gnndrive.store.importers import (
    from_csv,
    from_data,
    from_edges,
    from_graphbolt,
    from_ogb,
    open_or_make,
)
from gnndrive.store.link_split import open_links, split_links
from gnndrive.store.packed.unpack import unpack
from gnndrive.store.reader import Store, open
from gnndrive.store.writer import StoreWriter

if TYPE_CHECKING:
    from gnndrive.loader.lightning import LightningLinkData as LightningLinkData
    from gnndrive.loader.lightning import LightningNodeData as LightningNodeData

__version__ = version("gnndrive")

__all__ = [
    "ClosedError",
    "ConfigError",
    "GNNDriveError",
    "ImbalancedSampler",
    "LinkNeighborLoader",
    "NeighborLoader",
    "NeighborSampler",
    "ReadError",
    "Store",
    "StoreError",
    "StoreWriter",
    "from_csv",
    "from_data",
    "from_edges",
    "from_graphbolt",
    "from_ogb",
    "infer",
    "open",
    "open_links",
    "open_or_make",
    "pack",
    "split_links",
    "unpack",
    "write_store",
]


def __getattr__(name: str) -> Any:
    """Import Lightning when one of its two datamodules is used: it takes seconds."""
    if name in ("LightningLinkData", "LightningNodeData"):
        from gnndrive.loader import lightning

        return getattr(lightning, name)
    raise AttributeError(f"module 'gnndrive' has no attribute {name!r}")
