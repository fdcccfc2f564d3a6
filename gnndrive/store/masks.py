"""Masks of the splits: `data.train_mask` in PyG, bool [num_nodes], where a store has node ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from gnndrive.common.errors import ConfigError
from gnndrive.store.coo import check_room

# OGB's name for it; PyG's programs ask for `val_mask`.
_OTHER_NAMES = {"valid": "val"}


class HasSplits(Protocol):
    """Nodes with splits: `StoredNodes`."""

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""

    def stored_split(self, name: str) -> torch.Tensor:
        """The node ids of a split as the store has it, int64 [n]."""


def mask_names(splits: Sequence[str]) -> dict[str, str]:
    """The splits by the names of their masks: train_mask, …; val_mask of the split valid too."""
    names = {f"{split}_mask": split for split in splits}
    for split, other in _OTHER_NAMES.items():
        if split in splits:
            names.setdefault(f"{other}_mask", split)
    return names


def split_mask(nodes: HasSplits, split: str) -> torch.Tensor:
    """Make the mask of a split, bool [num_nodes].

    Raises:
        ConfigError: memory has no room for it.
        StoreError: the split is damaged.
    """
    instead = f"give a loader the node ids, store.split({split!r})"
    check_room(nodes.num_nodes, f"the mask of the split {split!r}", instead)
    mask = torch.zeros(nodes.num_nodes, dtype=torch.bool)
    mask[nodes.stored_split(split)] = True
    return mask


def splits_set(attached: Mapping[str, tuple[Any, int]]) -> list[str]:
    """The splits whose masks this process has set: train of `store.train_mask = …`.

    Args:
        attached: what was set with one row for each node; see `DataView.attached`.
    """
    names = (name for name, (value, _) in attached.items() if value.dtype == torch.bool)
    return [name.removesuffix("_mask") for name in names if name.endswith("_mask")]


def ids_set(
    split: str, splits: Sequence[str], attached: Mapping[str, tuple[Any, int]]
) -> torch.Tensor | None:
    """The node ids of a split whose mask this process has set, int64 [n]; None: it has set none.

    Args:
        split: the split's name.
        splits: the store's splits.
        attached: what was set with one row for each node; see `DataView.attached`.

    Raises:
        ConfigError: the mask is not one truth value for each node.
    """
    masks = [f"{split}_mask", *(name for name, of in mask_names(splits).items() if of == split)]
    name = next((name for name in masks if name in attached), None)
    if name is None:
        return None
    mask = attached[name][0]
    if mask.dtype != torch.bool or mask.ndim != 1:
        raise ConfigError(
            f"{name} was set to {mask.dtype} {list(mask.shape)}: for the split {split!r}, set one "
            "truth value for each node, or give the node ids"
        )
    return torch.nonzero(mask).view(-1).cpu()
