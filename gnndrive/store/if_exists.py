"""What an importer does if its path exists, and how several processes end with one store.

Every importer has `if_exists=`: "error", "open" what is there, or "replace" it. With "open" and
"replace" one process at a time writes; the others wait and open what it has written. If it fails or
dies, the next one writes.
"""

from __future__ import annotations

import functools
import inspect
import os
import warnings
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal, ParamSpec, get_args

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.file_lock import locked
from gnndrive.common.records import EdgeKey, NodeKey
from gnndrive.store.format import STORE_JSON
from gnndrive.store.reader import Store
from gnndrive.store.reader import open as open_store
from gnndrive.store.temporary_folders import clear, lock_of

IfExists = Literal["error", "open", "replace"]
Counts = tuple[Mapping[NodeKey, int], Mapping[EdgeKey, int] | None]
"""Numbers of nodes by type, and of edges by type or None if only the import would tell them."""

Kinds = Mapping[str, tuple[str, tuple[int, ...]]]
"""(dtype, shape of a row) of attributes, by their names in the store."""

P = ParamSpec("P")


# The paths that this thread is making, so that a maker may itself call an importer.
_held: ContextVar[frozenset[Path]] = ContextVar("_held", default=frozenset())


def with_if_exists(
    counts: Callable[[Mapping[str, Any]], Counts] | None = None,
    kinds: Callable[[Mapping[str, Any]], Kinds] | None = None,
) -> Callable[[Callable[P, Store]], Callable[P, Store]]:
    """A decorator that carries out the `if_exists=` of an importer, which is called only if it has
    to write, with if_exists="replace" if it may replace a store, else "error".

    Args:
        counts: takes the importer's arguments by name and returns what the store's numbers of nodes
            and edges would be; a store that is opened must have these. None: it may have any.
        kinds: takes the same and returns what the store's attributes would be; edges' are left out
            if only the import would tell them. None: they are not compared. Values never are.
    """

    def decorate(function: Callable[P, Store]) -> Callable[P, Store]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> Store:
            if "overwrite" in kwargs:
                raise ConfigError('overwrite= is no argument any more: give if_exists="replace"')
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError:
                return function(*args, **kwargs)  # the interpreter's error names the function
            bound.apply_defaults()
            given = bound.arguments
            path, mode = given["path"], given["if_exists"]

            def write(overwrite: bool) -> Store:
                given["if_exists"] = "replace" if overwrite else "error"
                return function(*bound.args, **bound.kwargs)

            def check(store: Store) -> None:
                if counts is not None:
                    _compare(store, *counts(given))
                if kinds is not None:
                    _compare_kinds(store, kinds(given), all_edges=not given["undirected"])

            return settle(path, mode, write, check)

        return call

    return decorate


def settle(
    path: str | os.PathLike[str],
    if_exists: IfExists,
    write: Callable[[bool], Store],
    check: Callable[[Store], None] = lambda _: None,
) -> Store:
    """Open the store at `path` or write it, whichever `if_exists` says.

    Args:
        path: the store's folder.
        if_exists: "error": write, and fail if the path exists. "open": open a store that is there,
            write one otherwise. "replace": write; but open the store that another process has
            finished meanwhile.
        write: writes the store; its argument says whether it may replace a store.
        check: called with a store that is opened; raises an error if it is another graph's.
    """
    if if_exists not in get_args(IfExists):
        raise ConfigError(f'if_exists={if_exists!r}: give "error", "open" or "replace"')
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(
            f"path= is a {type(path).__name__}, not a path: the order is from_data(data, path) and "
            "open_or_make(path, data)"
        )
    target = Path(os.path.realpath(path))
    if if_exists == "error" or target in _held.get():
        return write(if_exists == "replace")
    before = _stamp(target)
    if if_exists == "open" and before is not None:
        try:
            return _opened(target, check)
        except StoreError:
            if _stamp(target) == before:
                raise  # otherwise another process is replacing it: wait for that one
    if not target.parent.is_dir():
        raise ConfigError(f"the folder {target.parent} is not there: make it, or choose another")

    def say() -> None:
        warnings.warn(
            f"another process or thread is making {target}: waiting until it ends", stacklevel=5
        )

    with locked(lock_of(target), say) as waited:
        clear(target)  # puts a store back if the process that was replacing it was killed
        now = _stamp(target)
        # Only with the lock: without it, another process could be replacing the store just now.
        if now is None and os.path.lexists(target):
            raise ConfigError(f"{target} is not a store and is left as it is: choose another path")
        if now is not None and (if_exists == "open" or (waited and now != before)):
            return _opened(target, check)
        held = _held.set(_held.get() | {target})
        try:
            return write(if_exists == "replace")
        finally:
            _held.reset(held)


def _stamp(target: Path) -> tuple[int, int, int] | None:
    """What tells a store.json from one that replaces it; None if there is none."""
    try:
        found = os.stat(target / STORE_JSON)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _opened(target: Path, check: Callable[[Store], None]) -> Store:
    store = open_store(target)
    check(store)
    return store


def _compare(
    store: Store, nodes: Mapping[NodeKey, int], edges: Mapping[EdgeKey, int] | None
) -> None:
    """Check that a store that is opened has the numbers of the data that it stands for."""
    types = store.info.types
    there: dict[Any, int] = {key: each.num_nodes for key, each in types.nodes.items()}
    given: dict[Any, int] = dict(nodes)
    if edges is not None:
        there |= {(key,): count for key, count in types.edges.items()}
        given |= {(key,): count for key, count in edges.items()}
    for key in sorted(there.keys() | given.keys(), key=lambda key: (type(key) is tuple, str(key))):
        if there.get(key) != given.get(key):
            raise ConfigError(
                f"{store.path} was made of another graph: it has {_said(there, key)}, and the data "
                f"has {_said(given, key)}: choose another path, or replace it with "
                'if_exists="replace"'
            )


def _compare_kinds(store: Store, given: Kinds, all_edges: bool) -> None:
    """Check the names, dtypes and shapes of rows as `_compare` does the numbers."""
    groups = ("nodes/", "edges/") if all_edges else ("nodes/",)
    arrays = store.info.own.arrays.items()
    there = {name: (info.dtype, info.shape[1:]) for name, info in arrays if name.startswith(groups)}
    for name in sorted(there.keys() | given.keys(), key=lambda name: (name[0] == "e", name)):
        if there.get(name) != given.get(name):
            raise ConfigError(
                f"{store.path} was made of another graph: it has {_described(there, name)}, and "
                f"the data has {_described(given, name)}: choose another path, open it as it is "
                'with gnndrive.open, or replace it with if_exists="replace"'
            )


def _described(kinds: Kinds, name: str) -> str:
    if name not in kinds:
        return f"no {name}"
    dtype, row = kinds[name]
    return f"{name} {dtype} [{', '.join(['n', *map(str, row)])}]"


def _said(counts: Mapping[Any, int], key: Any) -> str:
    """The number of a type's nodes or edges in words; `key` is (type,) for edges."""
    edges = isinstance(key, tuple)
    type = key[0] if edges else key
    of_type = "" if type is None else f" of type {type!r}"
    return f"{counts.get(key, 'no')} {'edges' if edges else 'nodes'}{of_type}"
