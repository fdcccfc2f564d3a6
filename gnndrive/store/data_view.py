"""`DataView`: what PyG's programs read from `data` and set on it, answered by a store.

`Store` of a homogeneous graph, and the nodes or edges of a type (views.py), inherit it. It gives

- an array of the store as a mapped tensor, which is read as far as it is used;
- `edge_index` and a mask of a split, which are made when they are asked for, if memory has room;
- what this process has set (`Overlay`), which hides the store's attribute of that name.

Writing into a mapped tensor changes this process's memory, and no batch; setting an attribute
changes both. docs/tasks/from-data.md has a table of most of it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any, NoReturn, TypeAlias

import numpy as np
import torch

from gnndrive.common.errors import ConfigError
from gnndrive.common.names import did_you_mean
from gnndrive.store.convert import is_sparse, sparse_error
from gnndrive.store.graph_values import decode

GRAPH = ("edge_index", "adj_t", "adj")
COUNTS = ("num_nodes", "num_edges")
READ_ONLY = (
    "a store's graph is read-only, so transforms that change it cannot be applied to a store. "
    "Reverse edges: `gnndrive import --undirected`. Seed edges for link prediction: "
    "gnndrive.split_links. Any other: apply it to the data in memory, and write the result with "
    "gnndrive.from_data"
)
# What PyG's transforms look for in a Data or HeteroData before they change it.
_INTERNALS = ("_store", "_global_store", "_node_store_dict", "_edge_store_dict", "_parent")
_ABSENT = object()

Key: TypeAlias = "str | tuple[str, str, str] | None"
"""A node or edge type; None: the attributes of a homogeneous store, or those of a heterogeneous
store as a whole."""


class Overlay:
    """Attributes that this process has set or deleted on an open store, by key and name. A store on
    disk is never changed; they are in memory and end with the process.

    Threads may read it while one of them writes.

    Attributes:
        version: increases with each change.
    """

    def __init__(self) -> None:
        self.version = 0
        self._values: dict[Key, Mapping[str, Any]] = {}
        self._deleted: dict[Key, frozenset[str]] = {}

    def values(self, key: Key) -> Mapping[str, Any]:
        """The attributes that were set, by name."""
        return self._values.get(key, {})

    def hidden(self, key: Key) -> frozenset[str]:
        """Names of the store's attributes that do not count: deleted, or set to another value."""
        return self._deleted.get(key, frozenset()) | self.values(key).keys()

    def set(self, key: Key, name: str, value: Any) -> None:
        """Set an attribute."""
        # New mappings instead of changed ones, because another thread may iterate over them.
        self._values[key] = {**self.values(key), name: value}
        self._deleted[key] = self._deleted.get(key, frozenset()) - {name}
        self.version += 1

    def delete(self, key: Key, name: str) -> None:
        """Delete an attribute, whether it was set or is in the store."""
        self._values[key] = {each: of for each, of in self.values(key).items() if each != name}
        self._deleted[key] = self._deleted.get(key, frozenset()) | {name}
        self.version += 1

    def copy(self) -> Overlay:
        """A copy that shares the values; a change of either does not change the other."""
        other = Overlay()
        other.version = self.version
        other._values, other._deleted = dict(self._values), dict(self._deleted)
        return other

    def copy_values(self, memo: dict[int, Any]) -> None:
        """Replace each value with a deep copy of it; `memo` is `copy.deepcopy`'s."""
        self._values = {
            key: {name: deepcopy(value, memo) for name, value in values.items()}
            for key, values in self._values.items()
        }


class ReadOnlyError(ConfigError, AttributeError):
    """An attribute that a store cannot have, because it is read-only; the message says why."""


class DataView:
    """Attributes by name, as PyG's storages have them."""

    @property
    @abstractmethod
    def _overlay(self) -> Overlay: ...

    @property
    @abstractmethod
    def _key(self) -> Key: ...

    @abstractmethod
    def _makers(self) -> Mapping[str, Callable[[], Any]]:
        """The attributes that the store has; a call makes or maps the tensor."""

    @property
    @abstractmethod
    def _stored_values(self) -> Mapping[str, Any]:
        """The values of the whole graph, or of the type, in the store; see `StoreInfo.values`."""

    @abstractmethod
    def _rows(self, name: str, count: int) -> str:
        """Whose rows an attribute has that was set with `count` rows: "nodes", "edges" or ""."""

    @abstractmethod
    def _whose(self) -> str:
        """What has the attributes, for an error."""

    # ---- reading ----

    def keys(self, *names: str) -> list[str]:
        """Names of all attributes, or those of `names` that there are."""
        overlay, key = self._overlay, self._key
        hidden = overlay.hidden(key)
        stored = (*self._makers(), *self._stored_values)
        found = [name for name in stored if name not in hidden] + [*overlay.values(key)]
        return [name for name in found if name in names] if names else found

    def values(self, *names: str) -> list[Any]:
        """Attributes; see `keys`."""
        return [self[name] for name in self.keys(*names)]

    def items(self, *names: str) -> list[tuple[str, Any]]:
        """Names and attributes; see `keys`."""
        return [(name, self[name]) for name in self.keys(*names)]

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute, or `default` if there is none."""
        found = self._lookup(name)
        return default if found is _ABSENT else found

    def to_dict(self) -> dict[str, Any]:
        """All attributes by name."""
        return dict(self.items())

    def _lookup(self, name: str) -> Any:
        overlay, key = self._overlay, self._key
        values = overlay.values(key)
        if name in values:
            return values[name]
        if name in overlay.hidden(key):
            return _ABSENT
        if name in self._stored_values:
            return decode(self._stored_values[name])
        maker = self._makers().get(name)
        return _ABSENT if maker is None else maker()

    def __contains__(self, name: object) -> bool:
        return name in self.keys()

    def __len__(self) -> int:
        return len(self.keys())

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def __getitem__(self, name: Any) -> Any:
        found = self._lookup(name)
        if found is _ABSENT:
            raise KeyError(
                f"{self._whose()} has no {name!r}{self._meant(name)}; it has: {self._known()}"
            )
        return found

    def __getattr__(self, name: str) -> Any:
        if name in _INTERNALS:
            raise ReadOnlyError(READ_ONLY)
        if hasattr(type(self), name):  # a property raised an AttributeError: raise it again
            return object.__getattribute__(self, name)
        if not name.startswith("_"):
            found = self._lookup(name)
            if found is not _ABSENT:
                return found
        raise self._no_attribute(name)

    def _no_attribute(self, name: str) -> AttributeError:
        # `AttributeError`, because `hasattr` and `copy` ask for what there may not be.
        if name.startswith("__"):
            return AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return AttributeError(
            f"{self._whose()} has no {name!r}{self._meant(name)}; it has: {self._known()}. A "
            "method of PyG's Data that is not here: call it before gnndrive.from_data"
        )

    def _known(self) -> str:
        return ", ".join(self.keys()) or "no attributes"

    def _meant(self, name: Any) -> str:
        return did_you_mean(name, self.keys())

    # ---- setting ----

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
        else:
            self._set(name, value)

    def __delattr__(self, name: str) -> None:
        self._delete(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self._set(name, value)

    def __delitem__(self, name: str) -> None:
        self._delete(name)

    def _set(self, name: str, value: Any) -> None:
        """Set an attribute in this process.

        Raises:
            ConfigError: it is the graph itself, another number of nodes or edges, the name of a
                method, or sparse in a form of which torch reads no rows.
        """
        if name in COUNTS:
            if value != (have := getattr(self, name, None)):
                raise ConfigError(
                    f"{name} = {value!r}: {self._whose()} has {have}, and a store is read-only; "
                    "write another store"
                )
        elif name in GRAPH:
            raise ReadOnlyError(f"{name} cannot be set: {READ_ONLY}")
        elif hasattr(type(self), name):
            raise own_name_error(name, self)
        elif is_sparse(value) and getattr(value, "layout", None) != torch.sparse_coo:
            raise sparse_error(name)  # no batch can have rows of it
        else:
            self._overlay.set(self._key, name, value)

    def _delete(self, name: str) -> None:
        """Delete an attribute in this process; the number of nodes stays."""
        if name in COUNTS:
            return
        if name in GRAPH:
            raise ReadOnlyError(f"{name} cannot be deleted: {READ_ONLY}")
        if name not in self.keys():
            raise self._no_attribute(name)
        self._overlay.delete(self._key, name)

    # ---- rows ----

    def attached(self, group: str) -> dict[str, tuple[Any, int]]:
        """What this process has set with one row for each node or edge (`group`: "nodes" or
        "edges"): the tensor and its dimension of rows, by name."""
        found = {}
        for name, value in self._overlay.values(self._key).items():
            dim = _dim_of_rows(name, value)
            if dim is not None and self._rows(name, value.shape[dim]) == group:
                found[name] = (torch.as_tensor(value), dim)
        return found

    def unsliced(self) -> dict[str, Any]:
        """What has no row for each node or edge: the store's values of the whole graph, and what
        this process has set. A batch has it as it is, as in PyG."""
        sliced = self.attached("nodes").keys() | self.attached("edges").keys()
        values, hidden = self._overlay.values(self._key), self._overlay.hidden(self._key)
        stored = self._stored_values.items()
        return {name: decode(value) for name, value in stored if name not in hidden} | {
            name: value for name, value in values.items() if name not in sliced
        }

    def is_node_attr(self, name: str) -> bool:
        """Whether an attribute has one row for each node."""
        return self._group_of(name) == "nodes"

    def is_edge_attr(self, name: str) -> bool:
        """Whether an attribute has one row for each edge; as in PyG, `edge_index` does."""
        return self._group_of(name) == "edges"

    def node_attrs(self) -> list[str]:
        """Names of the attributes that have one row for each node."""
        return [name for name in self.keys() if self.is_node_attr(name)]

    def edge_attrs(self) -> list[str]:
        """Names of the attributes that have one row for each edge."""
        return [name for name in self.keys() if self.is_edge_attr(name)]

    def _group_of(self, name: str) -> str:
        values = self._overlay.values(self._key)
        if name not in values:
            return self._stored_group(name)
        dim = _dim_of_rows(name, values[name])
        return "" if dim is None else self._rows(name, values[name].shape[dim])

    @abstractmethod
    def _stored_group(self, name: str) -> str:
        """The group of an attribute that the store has."""

    def _columns(self, name: str) -> int:
        """Columns of an attribute; 0 if there is none."""
        value = self.get(name)
        if value is None or not isinstance(value, torch.Tensor | np.ndarray):
            return 0
        return 1 if value.ndim == 1 else int(value.shape[-1])


def own_name_error(name: str, view: DataView) -> ConfigError:
    """The error for setting a method or property of a view."""
    return ConfigError(
        f"{name!r} cannot be set, because it is a method or property of a {type(view).__name__}: "
        "choose another name"
    )


def refuse(what: str) -> NoReturn:
    """Raise the error for `what`, which would change a store."""
    raise ReadOnlyError(f"{what}: {READ_ONLY}")


def _dim_of_rows(name: str, value: Any) -> int | None:
    """The dimension along which PyG puts rows of nodes or edges together; None: there is none."""
    if not isinstance(value, torch.Tensor | np.ndarray) or value.ndim == 0:
        return None
    return value.ndim - 1 if "index" in name or name == "face" else 0
