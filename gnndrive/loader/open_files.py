"""`OpenFiles`: the files that a runtime reads: the adjacency, the tables' layouts, attributes.

`Runtime` opens them when it starts, and closes them after all reads have ended (rule 13).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from gnndrive.common.plugins import find
from gnndrive.disk.layouts.base import Layout, LayoutContext
from gnndrive.loader.settings import RuntimeSettings
from gnndrive.pyg.attributes import Attributes
from gnndrive.sampling.graph import Adjacency
from gnndrive.store.reader import Store


class OpenFiles:
    """The open files of a store, and of the derived folder that is read in its place.

    Args:
        store: the store.
        settings: say which layout the tables have, and where the adjacency lives.
        indices: indices of edge types that the host service has in memory.
        elsewhere: whether the host service reads the tables, or what the scheme has in place of
            feature buffers.

    Attributes:
        adjacency: the topologies.
        fetches: whether samplers read the adjacency from disk.
        attributes: reads the attributes that no table of the feature buffer holds.
        layouts: where the rows of tables lie, by the tables' names.
    """

    def __init__(
        self, store: Store, settings: RuntimeSettings, indices: Mapping[Any, Any],
        elsewhere: bool,
    ) -> None:  # fmt: skip
        source = settings.scheme.source
        edges = store.all_edges() if settings.scheme.whole_graph else ()
        self.layouts: dict[str, Layout] = {}
        with contextlib.ExitStack() as undo:
            self.adjacency = Adjacency(
                edges, settings.plan.topology, settings.request.disk.gap_bytes, indices
            )
            undo.callback(self.adjacency.close)
            self.fetches = any(topology.fetches for topology in self.adjacency.topologies)
            self.attributes = Attributes(
                store,
                {name: self.adjacency.layout(store.table(name)) for name in settings.plan.fetched},
                self.adjacency.read,
            )
            undo.callback(self._close_layouts)
            with contextlib.nullcontext() if source is None else source.unchanged():
                if not elsewhere:
                    self._open_layouts(store, settings)
            undo.pop_all()

    def _open_layouts(self, store: Store, settings: RuntimeSettings) -> None:
        source = settings.scheme.source
        kind: type[Layout] = find("layouts", settings.strategy.layout)
        for table in settings.request.tables:
            self.layouts[table.name] = kind.make(
                LayoutContext(
                    table.file,
                    settings.engine_settings.block_bytes,
                    settings.request.disk.gap_bytes,
                    store=store,
                    derived=None if source is None else source.file(table.name),
                )
            )

    def _close_layouts(self) -> None:
        for layout in self.layouts.values():
            layout.close()

    def close(self) -> None:
        """Close all files, after the engines that read them."""
        self._close_layouts()
        self.attributes.close()
        self.adjacency.close()
