"""`split_links`: PyG's RandomLinkSplit of a store, whose edges may exceed memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import format_size, least_text, parse_size
from gnndrive.common.progress import Progress
from gnndrive.common.records import EdgeKey, ends_of
from gnndrive.store.if_exists import IfExists, settle
from gnndrive.store.link_split.classes import CHUNK
from gnndrive.store.link_split.opened import LinkSplit, open_links, read_settings
from gnndrive.store.link_split.parts import Options, split_type, write_parts
from gnndrive.store.reader import Store
from gnndrive.store.reader import open as open_store


def split_links(
    store: Store | str | os.PathLike[str],
    path: str | os.PathLike[str] | None = None,
    *,
    num_val: int | float = 0.1,
    num_test: int | float = 0.2,
    is_undirected: bool = False,
    key: str = "edge_label",
    add_negative_train_samples: bool = True,
    neg_sampling_ratio: float = 1.0,
    disjoint_train_ratio: int | float = 0.0,
    edge_types: Any = None,
    rev_edge_types: Any = None,
    seed: int = 0,
    time: str | None = None,
    memory: str | int = "1GB",
    if_exists: IfExists = "error",
    progress: Progress | None = None,
) -> LinkSplit:
    """Split the edges of a store into training, validation and test edges, as RandomLinkSplit.

        train_data, val_data, test_data = gnndrive.split_links(store, "links.gnn")
        loader = LinkNeighborLoader(train_data, [10, 10], train_data.edge_label_index,
                                    train_data.edge_label, batch_size=1024, shuffle=True)

    Args:
        store: the store or its path; it stays as it is. The parts share its files of nodes by hard
            links. What this process has set on it for nodes is set on the parts that are returned,
            too.
        path: the folder to make. None: `store`'s name with "-links" in it, beside it.
        num_val, num_test: edges for validation and tests, a number or a share. All copies of an
            edge are in one part, so there may be a few fewer.
        is_undirected: each edge has its reverse; both are in one part, and labelled once.
        key: an edge attribute with labels, whole numbers; None has one: the label is 1.
        add_negative_train_samples: whether the training part has pairs without an edge too.
        neg_sampling_ratio: pairs of nodes without an edge, label 0, for each edge.
        disjoint_train_ratio: training edges, a number or a share, to supervise with; in the
            training part they pass no messages. 0: all training edges do both.
        edge_types, rev_edge_types: in a heterogeneous store the edge type to split, or a list of
            them, and the type of the reverses of each, or None.
        seed: the same seed gives the same split.
        time: an attribute of edges with times, whole numbers: the latest edges are for tests, and
            those before them for validation. Edges of one time are in one part, copies of an edge
            with several times may be in several; an edge and its reverse must have one time. None:
            edges are drawn at random.
        memory: bytes, or a text such as "1GB"; an error names the least that works.
        if_exists: as for `from_data`; a split with other arguments is not opened.
        progress: called as progress(what, done, in all).

    Returns:
        (train, val, test): stores whose edges pass messages, with edge_label_index [2, n] (edges
        first, in the order of their targets, then pairs without an edge) and edge_label [n].

    Raises:
        ConfigError: arguments do not fit together, an attribute of edges was set on the store, or
            `path` exists.
        StoreError: the disk is full, or writing failed.
    """
    if isinstance(store, str | os.PathLike):
        store = open_store(store)
    _check_store(store)
    options = Options(
        num_val, num_test, is_undirected, key, add_negative_train_samples, neg_sampling_ratio,
        disjoint_train_ratio, seed, time,
    )  # fmt: skip
    types = _checked_types(store, edge_types, rev_edge_types, is_undirected)
    _check_not_set(store, key)
    _check_memory(store, types, options, parse_size(memory, "memory"))
    if path is None:
        path = store.path.with_name(f"{store.path.stem}-links{store.path.suffix}")
    target = Path(os.path.realpath(path))
    if target == Path(os.path.realpath(store.path)):
        raise ConfigError(f"{target} is the store that is split: choose another path")
    settings = {
        "edge_types": [list(type or ()) for type in types],
        "rev_edge_types": [list(reverse or ()) for reverse in types.values()],
        "store": store.identity,
        **asdict(options),
    }

    def tell(done: int) -> None:
        if progress is not None:
            progress("splitting links", done, 4)

    def write(overwrite: bool) -> Store:
        tell(0)
        splits = [
            split_type(store, type, reverse, options, place)
            for place, (type, reverse) in enumerate(types.items())
        ]
        write_parts(store, target, splits, options, settings, overwrite, tell)
        tell(4)
        return open_store(target)

    settle(target, if_exists, write, lambda found: _check_same(found.path, settings))
    parts = open_links(target)
    for part in parts:
        part.__dict__["overlay"] = store.overlay.copy()
    return parts


def _check_store(store: Any) -> None:
    """Refuse data in memory."""
    if not isinstance(store, Store):
        raise ConfigError(
            f"split_links takes a store, not a {type(store).__name__}; for data in memory there is "
            "torch_geometric.transforms.RandomLinkSplit"
        )
    store.check_whole("a split has all: split the whole store")


def _check_same(path: Path, settings: Mapping[str, Any]) -> None:
    """Check that a split that is there was made of the same store with the same arguments."""
    there = read_settings(path)
    differing = [name for name, value in settings.items() if there.get(name) != value]
    if differing:
        raise ConfigError(
            f"{path} is a split with another {', another '.join(differing)}: choose another path, "
            'or replace it with if_exists="replace"'
        )


_EDGE_BYTES = 160  # memory for each edge of a chunk, and for each pair that is drawn
_FIXED_BYTES = 20 << 20  # opening a store; counts of the numbers of edges


def _checked_types(
    store: Store, edge_types: Any, rev_edge_types: Any, undirected: bool
) -> dict[EdgeKey, EdgeKey]:
    """The edge types to split, each with the type of its reverses or None."""
    if not store.is_hetero:
        if edge_types is not None or rev_edge_types is not None:
            raise ConfigError(f"{store.path} is homogeneous: leave out edge_types= and rev_…=")
        return {None: None}
    if edge_types is None:
        raise ConfigError(
            "edge_types= is not given: name the edge type to split, or a list; the types are "
            f"{', '.join(map(str, store.edge_types))}"
        )
    given = edge_types if isinstance(edge_types, list) else [edge_types]
    reverses = rev_edge_types if isinstance(rev_edge_types, list) else [rev_edge_types]
    if rev_edge_types is None:
        reverses = [None] * len(given)
    if len(given) != len(reverses) or not given:
        raise ConfigError(
            f"{len(given)} edge_types= and {len(reverses)} rev_edge_types=: give one for each, or "
            "None where an edge type has no reverse"
        )
    key = store.info.types.edge_key
    found: dict[EdgeKey, EdgeKey] = {}
    used: list[EdgeKey] = []
    for type, reverse in zip(map(key, given), reverses, strict=True):
        other = None if reverse is None else key(reverse)
        if other == type and not undirected:
            raise ConfigError(f"{type} is given as its own reverse: give is_undirected=True")
        if other is not None and ends_of(other) != ends_of(type)[::-1]:
            raise ConfigError(f"{other} does not hold reverses of {type}: it joins other types")
        other = None if other == type else other
        used += [type] if other is None else [type, other]
        found[type] = other
    if len(set(used)) < len(used):
        raise ConfigError("an edge type is named twice in edge_types= and rev_edge_types=")
    return found


def _check_not_set(store: Store, key: str) -> None:
    """Check that this process has set no attribute of edges; the parts have those on disk. Nor may
    the attribute `key`, which has labels, be deleted."""
    labels = {key, "edge_label", "edge_label_index"}
    for edges in store.all_edges():
        overlay = store.overlay
        found = {*edges.attached("edges"), *(labels & overlay.hidden(edges.type))}
        if found:
            of_type = "" if edges.type is None else f" of {edges.type}"
            raise ConfigError(
                f"{', '.join(sorted(found))}{of_type} was set or deleted on this store, and "
                "split_links takes attributes of edges from the disk: write a store that has it "
                f"with gnndrive.from_data, or split gnndrive.open({str(store.path)!r})"
            )


def _check_memory(
    store: Store, types: dict[EdgeKey, EdgeKey], options: Options, memory: int
) -> None:
    """Check that `memory` bytes are enough; the error names the least that is."""
    needed = 0
    for each in {*types, *types.values()} - ({None} if store.is_hetero else set()):
        edges = store.edges(each)
        targets = max(1, edges.target.num_nodes)
        sizes = (max(len(ends), int(ends[-1] - ends[0])) for _, ends in edges.ranges(CHUNK))
        chunk = max(sizes, default=0) + int(CHUNK * options.neg_sampling_ratio)
        bits = 0 if edges.edge_id is None and not edges.names else edges.num_edges // 4
        needed = max(needed, _FIXED_BYTES + _EDGE_BYTES * chunk + 24 * targets + bits)
    if needed > memory:
        raise ConfigError(
            f"memory={format_size(memory, needed)} is too little: splitting these edges needs "
            f'memory="{least_text(needed)}"'
        )
