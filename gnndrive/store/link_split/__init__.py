"""Split the edges of a store for link prediction, as PyG's RandomLinkSplit does in memory.

`split` has `split_links`; `classes` says which edge is in which part; `parts` writes the parts;
`opened` has `open_links` and what it returns.
"""

from gnndrive.store.link_split.opened import LabelledEdges, LinkSplit, PartStore, open_links
from gnndrive.store.link_split.split import split_links

__all__ = ["LabelledEdges", "LinkSplit", "PartStore", "open_links", "split_links"]
