"""Layouts: where rows lie on disk."""

from __future__ import annotations

from gnndrive.disk.layouts.base import Layout, LayoutContext
from gnndrive.disk.layouts.table import TableLayout

__all__ = ["open_array"]


def open_array(context: LayoutContext) -> Layout:
    """The layout of an array as the store's format has it, whatever the strategy does with the
    features: rows one behind the other in one file.

    Raises:
        StoreError: the file cannot be opened.
    """
    return TableLayout.make(context)
