"""Evaluation by inference over all nodes, where that reads less than sampled batches.

Sampling the neighbourhoods of many nodes reads most rows again and again. `gnndrive.infer` reads
each layer's rows in a few passes, whatever the number of nodes to evaluate. `is_cheaper` estimates
both. The accuracies differ a little, because inference takes all neighbours and not a sample.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

from gnndrive.cli.report import Bars
from gnndrive.cli.training import NO_LABEL, seed_labels
from gnndrive.common.errors import ReadError, StoreError
from gnndrive.common.memory import available_memory
from gnndrive.disk.layouts.base import SWEEP_BLOCK_BYTES
from gnndrive.inference import infer
from gnndrive.plan.plan import DEFAULT_SHARE
from gnndrive.store.calibration import gap_bytes, load_calibration
from gnndrive.store.reader import Store
from gnndrive.store.temporary_folders import TemporaryFolder

AT_ONCE = 1 << 16  # nodes whose classes are compared at once


def is_cheaper(
    store: Store, nodes: int, fanout: tuple[int, ...], batch_size: int, memory: int | None,
    on_device: int | None = None,
) -> bool:  # fmt: skip
    """Whether inference over all nodes reads less than sampled batches of `nodes` nodes.

    Both are estimated for nodes that are drawn evenly, so a skewed graph needs less in both cases.
    A row counts with the gap that a planned read bridges, because a request costs as much.

    Args:
        memory: bytes for rows; None: a quarter of the available memory.
        on_device: bytes for the rows of batches on a device; None: `memory` holds them.
    """
    count, file = store.num_nodes, store.table("x")
    room = int(DEFAULT_SHARE * available_memory()) if memory is None else memory
    kept, kept_by_batches = (
        min(each / max(count * file.row_bytes, 1), 1.0)
        for each in (room, room if on_device is None else on_device)
    )
    if kept_by_batches >= 1:  # all rows stay in memory, and batches read each once
        return False
    passes = 1.0 if kept >= 1 else (count + store.num_edges) / max(-count * math.log1p(-kept), 1)
    whole = len(fanout) * max(passes, 1) * count * file.row_bytes
    reached, frontier = 1.0, 1.0
    for taken in fanout:
        frontier *= taken if taken >= 0 else store.num_edges / max(count, 1)
        reached += frontier
    batches = math.ceil(nodes / batch_size)
    rows = -count * math.expm1(-min(batch_size, nodes) * reached / count)
    gap = gap_bytes(load_calibration(store), SWEEP_BLOCK_BYTES)
    sampled = min(rows * (file.row_bytes + gap), count * file.row_bytes)
    return whole < batches * (1 - kept_by_batches) * sampled


def can_write_beside(store: Store) -> bool:
    """Whether files can be made beside the store, which evaluation by inference needs."""
    try:
        TemporaryFolder(store.path, "sort").remove()
    except OSError:
        return False
    return True


def accuracies(
    model: torch.nn.Module, store: Store, splits: Mapping[str, Any], memory: str | int | None
) -> dict[str, float]:
    """The share, from 0 to 1, of each split's labelled nodes that a model classifies correctly; a
    split without any is left out.

    The rows that are computed lie in a folder of this call's own, beside the store.

    Args:
        model: one that `gnndrive.infer` takes, with a column for each class.
        splits: node ids by split, int64 [n].
    """
    try:
        with TemporaryFolder(store.path, "sort") as out:
            with Bars() as bars:
                infer(model, store, out=out, memory=memory, progress=bars)
            return _shares(np.load(out / "h.npy", mmap_mode="r"), store, splits)
    except ReadError:
        raise
    except OSError as error:
        raise StoreError(
            f"the model cannot be evaluated beside {store.path} ({error.strerror or error}): make "
            "that folder writable and free some space, or give --buffer to evaluate with batches"
        ) from error


def _shares(rows: Any, store: Store, splits: Mapping[str, Any]) -> dict[str, float]:
    """See `accuracies`; `rows` is [nodes, classes]."""
    y, found = store.tensor("y"), {}
    for split, ids in splits.items():
        right = labelled = 0
        for start in range(0, len(ids), AT_ONCE):
            part = torch.as_tensor(ids[start : start + AT_ONCE])
            labels = seed_labels(Data(y=y[part], batch_size=len(part)))
            known = labels != NO_LABEL
            answer = torch.from_numpy(rows[part[known].numpy()]).argmax(dim=-1)
            right += int((answer == labels[known]).sum())
            labelled += int(known.sum())
        if labelled:
            found[split] = right / labelled
    return found
