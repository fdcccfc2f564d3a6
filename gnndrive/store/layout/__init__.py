"""Derived layouts of a store: folders that hold what is in it in another order on disk.

A kind of layout is a folder of its own beside this one: `packed/` and `partitioned/`. It gives a
`LayoutKind` (kind.py), to which `kinds.py` adds it, and a `LayoutFolder` (folder.py) that makes it
in phases. The rows of tables are written by `RowPacking` (rows.py).
"""
