"""Splits for importers: drawn at random, or given as ids, masks or files of either."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.records import Int64Array
from gnndrive.store.convert import ArrayLike
from gnndrive.store.importers.features import BAD_FILE, map_npy
from gnndrive.store.importers.label_file import Labels
from gnndrive.store.importers.text import (
    NodeNumbers,
    no_node,
    read_ids,
    read_mapped_ids,
    unknown_id,
)

_CHUNK = 1 << 20  # ids that are mapped at a time


@dataclass(frozen=True, slots=True)
class RandomSplit:
    """A random split of the labelled nodes into train, val and test.

    Attributes:
        train, val, test: fractions of the nodes; together at most 1.
        seed: seed of torch's generator; the same seed gives the same split.
    """

    train: float = 0.6
    val: float = 0.2
    test: float = 0.2
    seed: int = 0


SplitFile: TypeAlias = "str | os.PathLike[str]"
SplitSpec: TypeAlias = (
    "RandomSplit | tuple[float, ...] | tuple[str, float, float, float, int] | "
    "Mapping[str, SplitFile | ArrayLike] | None"
)
"""What importers take as `splits`; (train, val, test), (train, val) and ("random", train, val,
test, seed) are a RandomSplit."""


def as_random(splits: Any) -> Any:
    """The RandomSplit that a tuple of two or three shares stands for; else `splits`."""
    numbers = isinstance(splits, tuple) and all(isinstance(each, Real) for each in splits)
    if not numbers or not splits:
        return splits
    if len(splits) not in (2, 3) or any(each > 1 for each in splits):
        raise ConfigError(
            f"splits={splits!r}: give the shares of train, val and test, such as (0.6, 0.2, 0.2); "
            "for numbers of nodes, draw ids and give them by name"
        )
    train, val, *test = splits
    return RandomSplit(train, val, *(test or [0.0]))


def labelled(y: npt.NDArray[Any]) -> Int64Array:
    """The nodes with a label of those in `y` [num_nodes, …]: one that is not NaN or -1 alone."""
    has = ~np.isnan(y) if y.dtype.kind == "f" else y != -1
    return np.flatnonzero(has.reshape(len(y), -1).any(1))


def random_split(nodes: Int64Array, split: RandomSplit) -> dict[str, Int64Array]:
    """Draw train, val and test from `nodes`: disjoint sorted ids, as many as the fractions say,
    rounded; if the fractions add up to 1, every node is in one split."""
    fractions = (split.train, split.val, split.test)
    if not all(0 <= part <= 1 for part in fractions) or sum(fractions) > 1 + 1e-9:
        raise ConfigError(
            f"a random split into {fractions} is not possible: give parts from 0 to 1 that add up "
            "to 1 or less"
        )
    if not 0 <= split.seed < 2**64:
        raise ConfigError(f"a random split's seed is {split.seed}: give one from 0 to 2**64 - 1")
    # torch's permutation, as in PyG's split transforms, so that users can make the split themselves
    draw = torch.Generator().manual_seed(split.seed)
    order = nodes[torch.randperm(len(nodes), generator=draw).numpy()]
    ends = [round(sum(fractions[: part + 1]) * len(nodes)) for part in range(3)]
    parts = np.split(order[: ends[2]], ends[:2])
    return dict(zip(("train", "val", "test"), map(np.sort, parts), strict=True))


def resolve(
    splits: SplitSpec,
    y: Labels | None,
    num_nodes: int,
    numbers: NodeNumbers | None = None,
    first_id: int = 0,
) -> dict[str, ArrayLike]:
    """The ids or masks of an importer's argument `splits`, by name.

    Args:
        y: the labels, because a random split draws from the nodes that have one; None: from all.
        numbers: None: `splits` names nodes by their numbers, which count from `first_id`.
    """
    if splits is None:
        return {}
    splits = as_random(splits)
    if isinstance(splits, tuple):
        if len(splits) != 5 or splits[0] != "random":
            raise ConfigError(
                f"splits {splits!r}: give ('random', train, val, test, seed), such as "
                "('random', 0.6, 0.2, 0.2, 0), or the shares alone, (0.6, 0.2, 0.2)"
            )
        splits = RandomSplit(*splits[1:])
    if isinstance(splits, RandomSplit):
        labelled = np.arange(num_nodes) if y is None else y.nodes
        return dict(random_split(labelled, splits))
    if not isinstance(splits, Mapping):
        raise ConfigError(f"splits {splits!r}: give a RandomSplit, or ids or files by name")
    return {
        name: _read(Path(value), num_nodes, numbers, first_id)
        if isinstance(value, str | os.PathLike)
        else _nodes(value, f"split {name!r}", num_nodes, numbers, first_id)
        for name, value in splits.items()
    }


def _read(path: Path, num_nodes: int, numbers: NodeNumbers | None, first_id: int) -> ArrayLike:
    if path.suffix != ".npy":
        if numbers is not None:
            return read_mapped_ids(path, numbers)
        return read_ids(path, num_nodes, first_id)
    try:
        ids = map_npy(path)
    except BAD_FILE as error:
        raise StoreError(
            f"{path} cannot be read as .npy ({error}): save it with numpy.save"
        ) from None
    return _nodes(ids, str(path), num_nodes, numbers, first_id)


def _nodes(
    ids: ArrayLike, where: str, num_nodes: int, numbers: NodeNumbers | None, first_id: int
) -> ArrayLike:
    """The nodes' numbers of ids; a mask, and what is no array of ids, is returned."""
    if numbers is None and not first_id:
        return ids
    try:
        array = np.asarray(ids.cpu() if isinstance(ids, torch.Tensor) else ids)
    except (TypeError, ValueError, RuntimeError):  # the writer refuses it and says why
        return ids
    if array.ndim != 1 or array.dtype.kind not in "iuUO":
        return ids
    if numbers is None and array.dtype.kind in "iu":
        if len(bad := np.flatnonzero((array < first_id) | (array >= num_nodes + first_id))):
            place = f"{where}, entry {bad[0]} (from 0)"
            raise no_node(place, int(array[bad[0]]), num_nodes, first_id, "")
        return array.astype(np.int64) - first_id
    if numbers is None:
        return ids
    parts = [np.empty(0, np.int64)]
    for start in range(0, len(array), _CHUNK):
        chunk = array[start : start + _CHUNK]
        nodes = numbers(chunk)
        if len(unknown := np.flatnonzero(nodes < 0)):
            first = unknown[0]
            raise unknown_id(f"{where}, entry {start + first} (from 0)", chunk[first])
        parts.append(nodes)
    return np.concatenate(parts)
