"""Masks of the splits: `data.train_mask` in PyG, bool [num_nodes], where a store has node ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from gnndrive.store.coo import check_room

# OGB's name for it; PyG's programs ask for `val_mask`.
_OTHER_NAMES = {"valid": "val"}


class HasSplits(Protocol):
    """Nodes with splits: `StoredNodes`."""

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""

    def split(self, name: str) -> torch.Tensor:
        """The node ids of a split, int64 [n]."""


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
    mask[nodes.split(split)] = True
    return mask
