"""Check the arguments of `split_links`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import format_size
from gnndrive.common.records import EdgeKey, ends_of
from gnndrive.store.link_split.classes import CHUNK, largest_chunk
from gnndrive.store.reader import Store

_EDGE_BYTES = 160  # memory for each edge of a chunk, and for each pair that is drawn
_FIXED_BYTES = 20 << 20  # opening a store; counts of the numbers of edges
_RATIO_MAX = 1000


@dataclass(frozen=True, slots=True)
class Options:
    """What a split depends on, beside the store; PyG's arguments of these names.

    Raises:
        ConfigError: a number is out of range.
    """

    num_val: int | float
    num_test: int | float
    is_undirected: bool
    key: str
    add_negative_train_samples: bool
    neg_sampling_ratio: float
    disjoint_train_ratio: int | float
    seed: int

    def __post_init__(self) -> None:
        for name in ("num_val", "num_test", "disjoint_train_ratio"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not 0 <= value <= (1 if isinstance(value, float) else value):
                raise ConfigError(
                    f"{name}={value!r}: give a share from 0.0 to 1.0, or a number of edges"
                )
        ratio: Any = self.neg_sampling_ratio
        if not isinstance(ratio, int | float) or not 0 <= ratio <= _RATIO_MAX:
            raise ConfigError(
                f"neg_sampling_ratio={ratio!r}: give a number from 0 (no pairs) to {_RATIO_MAX}"
            )
        if type(self.seed) is not int or self.seed < 0:
            raise ConfigError(f"seed={self.seed!r}: give a whole number from 0")


def checked_types(store: Store, edge_types: Any, rev_edge_types: Any, undirected: bool) -> Any:
    """The edge types to split, each with the type of its reverses or None.

    Args:
        store: the store.
        edge_types, rev_edge_types, undirected: arguments of `split_links`.

    Raises:
        ConfigError: there is no such type, or types do not fit together.
    """
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


def check_not_set(store: Store, key: str) -> None:
    """Check that this process has set no attribute of edges; the parts have those on disk.

    Args:
        store: the store.
        key: the attribute with labels, which may not be deleted either.

    Raises:
        ConfigError: it has.
    """
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


def check_memory(
    store: Store, types: dict[EdgeKey, EdgeKey], options: Options, memory: int
) -> None:
    """Check that `memory` bytes are enough.

    Raises:
        ConfigError: they are not; the message names the least that is.
    """
    needed = 0
    for each in {*types, *types.values()} - ({None} if store.is_hetero else set()):
        edges = store.edges(each)
        targets = max(1, edges.target.num_nodes)
        chunk = largest_chunk(edges) + int(CHUNK * options.neg_sampling_ratio)
        bits = 0 if edges.edge_id is None and not edges.names else edges.num_edges // 4
        needed = max(needed, _FIXED_BYTES + _EDGE_BYTES * chunk + 24 * targets + bits)
    if needed > memory:
        raise ConfigError(
            f"memory={format_size(memory)} is too little: splitting these edges needs "
            f'memory="{-(-needed // 10**6)}MB"'
        )
