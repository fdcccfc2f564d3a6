"""`Overlay`: attributes that this process has set or deleted on an open store.

A store on disk is never changed. What a program sets on it, as PyG's programs set attributes of
their `data`, is kept here, in memory, and ends with the process.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from types import MappingProxyType
from typing import Any, TypeAlias

Key: TypeAlias = "str | tuple[str, str, str] | None"
"""A node or edge type; None: the attributes of a homogeneous store, or those of a heterogeneous
store as a whole."""
_NONE: Mapping[str, Any] = MappingProxyType({})


class Overlay:
    """Attributes by key and name. Threads may read it while one of them writes.

    Attributes:
        version: increases with each change.
    """

    def __init__(self) -> None:
        self.version = 0
        self._values: dict[Key, Mapping[str, Any]] = {}
        self._deleted: dict[Key, frozenset[str]] = {}

    def values(self, key: Key) -> Mapping[str, Any]:
        """The attributes that were set, by name."""
        return self._values.get(key, _NONE)

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
