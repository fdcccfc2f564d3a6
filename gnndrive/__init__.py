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

from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from gnndrive.common.imports import import_quickly  # `common` refuses other systems than Linux

if TYPE_CHECKING:
    from gnndrive.common.errors import (
        ClosedError,
        ConfigError,
        GNNDriveError,
        HostServiceError,
        PeerError,
        ReadError,
        StoreError,
    )
    from gnndrive.host.connect import connect
    from gnndrive.inference.infer import infer
    from gnndrive.loader.arguments import Tuning
    from gnndrive.loader.hgt_loader import HGTLoader
    from gnndrive.loader.imbalanced_sampler import ImbalancedSampler
    from gnndrive.loader.lightning import LightningLinkData as LightningLinkData
    from gnndrive.loader.lightning import LightningNodeData as LightningNodeData
    from gnndrive.loader.neighbor_loader import LinkNeighborLoader, NeighborLoader
    from gnndrive.pyg.sampler import NeighborSampler
    from gnndrive.sampling.labor import Labor
    from gnndrive.store.importers import (
        from_csv,
        from_data,
        from_edges,
        from_graphbolt,
        from_ogb,
        from_pt,
        from_tables,
        open_or_make,
    )
    from gnndrive.store.link_split import open_links, split_links
    from gnndrive.store.partitioned.partition import partition
    from gnndrive.store.reader import Store, open
    from gnndrive.store.striped.stripe import stripe
    from gnndrive.store.writer import StoreWriter, write_store
    from gnndrive.strategies.packs.pack import pack

__version__ = version("gnndrive")

__all__ = [
    "ClosedError",
    "ConfigError",
    "GNNDriveError",
    "HGTLoader",
    "HostServiceError",
    "ImbalancedSampler",
    "Labor",
    "LinkNeighborLoader",
    "NeighborLoader",
    "NeighborSampler",
    "PeerError",
    "ReadError",
    "Store",
    "StoreError",
    "StoreWriter",
    "Tuning",
    "connect",
    "from_csv",
    "from_data",
    "from_edges",
    "from_graphbolt",
    "from_ogb",
    "from_pt",
    "from_tables",
    "infer",
    "open",
    "open_links",
    "open_or_make",
    "pack",
    "partition",
    "split_links",
    "stripe",
    "write_store",
]

_MODULES = {
    "common.errors": (
        "ClosedError", "ConfigError", "GNNDriveError", "HostServiceError", "PeerError", "ReadError",
        "StoreError",
    ),
    "host.connect": ("connect",),
    "inference.infer": ("infer",),
    "loader.arguments": ("Tuning",),
    "loader.hgt_loader": ("HGTLoader",),
    "loader.imbalanced_sampler": ("ImbalancedSampler",),
    "loader.lightning": ("LightningLinkData", "LightningNodeData"),
    "loader.neighbor_loader": ("LinkNeighborLoader", "NeighborLoader"),
    "strategies.packs.pack": ("pack",),
    "pyg.sampler": ("NeighborSampler",),
    "sampling.labor": ("Labor",),
    "store.importers": (
        "from_csv", "from_data", "from_edges", "from_graphbolt", "from_ogb", "from_pt",
        "from_tables", "open_or_make",
    ),
    "store.link_split": ("open_links", "split_links"),
    "store.partitioned.partition": ("partition",),
    "store.reader": ("Store", "open"),
    "store.striped.stripe": ("stripe",),
    "store.writer": ("StoreWriter", "write_store"),
}  # fmt: skip

_GONE = {
    "unpack": ": a pack is a folder, to be removed with shutil.rmtree, or replaced with "
    "gnndrive.pack(…, overwrite=True)"
}
"""Public names that there were, and what stands for them now."""


def __getattr__(name: str) -> Any:
    """Import a public name, or a part of the package, when it is first used: PyTorch and PyG take
    seconds, and the host service needs neither."""
    for module, names in _MODULES.items():
        if name in names:
            found = globals()[name] = getattr(import_quickly(f"gnndrive.{module}"), name)
            return found
    if not name.startswith("_") and find_spec(f"gnndrive.{name}") is not None:
        return import_module(f"gnndrive.{name}")
    from gnndrive.common.names import did_you_mean

    more = _GONE.get(name) or did_you_mean(name, __all__)
    raise AttributeError(f"module 'gnndrive' has no attribute {name!r}{more}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
