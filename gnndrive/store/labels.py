"""The number of classes of `y`, counted while it is written; the rules are PyG's `num_classes`'."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gnndrive.common.distinct import distinct
from gnndrive.store.convert import Rows, dtype_of, to_storage

_LABEL_MAX = 1 << 48  # numbers from here on are no labels
_TABLE = 1 << 24  # labels below it are counted in a table of so many bytes at most


class ClassCount:
    """Counts the classes of y, chunk by chunk.

    One column of whole numbers has as many classes as its largest value + 1; -1 means that there is
    no label. Several columns (multi-label) are one class each. A column of floats counts as whole
    numbers if every value is whole or nan (no label), because OGB stores labels so; otherwise it
    has 0 classes.

    Labels with gaps, such as 0, 1 and 4000, are as many classes as their largest says. A model has
    an output for each of them, so `gaps` says when most of them have no node.
    """

    def __init__(self) -> None:
        self._count = 0
        self._whole = True
        self._used = np.zeros(0, np.bool_)  # which labels below _TABLE occur
        self._large = np.empty(0, np.int64)  # the others that occur

    def feed(self, chunk: Rows) -> None:
        """Count the classes of the next rows."""
        if chunk.ndim > 1 and chunk.shape[-1] != 1:
            self._count = int(chunk.shape[-1])
            return
        values = to_storage(
            chunk, "float32" if dtype_of(chunk) == "bfloat16" else dtype_of(chunk), "y"
        )
        if values.dtype.kind == "f":
            values = values[~np.isnan(values)]
            if not (np.isfinite(values) & (values == np.floor(values)) & (values < 2**31)).all():
                self._whole = False
                return
        if values.size:
            self._count = max(self._count, int(values.max()) + 1)
            self._mark(values)

    def _mark(self, values: npt.NDArray[Any]) -> None:
        """Remember which labels occur."""
        labels = values[(values >= 0) & (values < _LABEL_MAX)].astype(np.int64)
        small = labels[labels < _TABLE]
        if small.size and (missing := int(small.max()) + 1 - len(self._used)) > 0:
            self._used = np.concatenate([self._used, np.zeros(missing, np.bool_)])
        self._used[small] = True
        if small.size < labels.size and len(self._large) < _TABLE:
            self._large = distinct(np.concatenate([self._large, labels[labels >= _TABLE]]))

    def result(self) -> int:
        """The number of classes; 0 if y does not hold classes."""
        return self._count if self._whole and self._count < _LABEL_MAX else 0

    def gaps(self) -> str | None:
        """A text that says how many classes have no node, if those are more than half of all
        classes; else None."""
        used = int(self._used.sum()) + len(self._large)
        count = self.result()
        if not used or count <= 2 * used:
            return None
        return (
            f"its labels go up to {count - 1:,}, so there are {count:,} classes, of which only "
            f"{used:,} have a node; if y holds classes, number them from 0 without gaps "
            "(torch.unique(y, return_inverse=True)[1]; in CSV, labels may be names), else give it "
            "another name or floats that are not whole"
        )


def count_classes(y: torch.Tensor) -> int:
    """The number of classes of labels in memory; 0 if y does not hold classes.

    Args:
        y: the labels [nodes] or [nodes, columns], in any dtype.
    """
    found = ClassCount()
    found.feed(y.detach().cpu())
    return found.result()
