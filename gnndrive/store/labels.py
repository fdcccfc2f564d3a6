"""How many classes `y` has, counted while it is written (as PyG's `num_classes` counts them)."""

from __future__ import annotations

import numpy as np

from gnndrive.store.convert import Rows, dtype_of, to_storage


class ClassCount:
    """Sees the chunks of y and says the number of classes at the end.

    Whole numbers: the largest + 1, so that -1 may mean "no label". Several columns: their number
    (multi-label). Floats count only if they are whole (or nan, no label), as OGB has them; other
    floats are no classes: 0.
    """

    def __init__(self) -> None:
        self._count = 0
        self._whole = True

    def feed(self, chunk: Rows) -> None:
        """Look at the next rows."""
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
        """The number of classes, 0 if y does not say classes."""
        return self._count if self._whole and self._count < 1 << 48 else 0
