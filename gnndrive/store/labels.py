"""The number of classes of `y`, counted while it is written; the rules are PyG's `num_classes`'."""

from __future__ import annotations

import numpy as np

from gnndrive.store.convert import Rows, dtype_of, to_storage


class ClassCount:
    """Counts the classes of y, chunk by chunk.

    One column of whole numbers has as many classes as its largest value + 1; -1 means that there is
    no label. Several columns (multi-label) are one class each. A column of floats counts as whole
    numbers if every value is whole or nan (no label), because OGB stores labels so; otherwise it
    has 0 classes.
    """

    def __init__(self) -> None:
        self._count = 0
        self._whole = True

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

    def result(self) -> int:
        """The number of classes; 0 if y does not hold classes."""
        return self._count if self._whole and self._count < 1 << 48 else 0
