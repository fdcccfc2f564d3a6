"""Layouts: they know where rows lie on disk, and plan the reads of missing rows.

To add one, write one file here with a subclass of `Layout` (`base.py`) that has a `name` and a
class method `make(context: LayoutContext)`.
`tests/disk/layouts/test_conformance.py` holds every plug-in of the kind to its contract.
"""

from __future__ import annotations

from gnndrive.disk.layouts.base import Layout, LayoutContext
from gnndrive.disk.layouts.table import TableLayout

__all__ = ["open_array"]


def open_array(context: LayoutContext) -> Layout:
    """Open an array in the form that the store's format defines: consecutive rows in one file. For
    all arrays but the features, which have the layout that the strategy names."""
    return TableLayout.make(context)
