"""Sampling inside the windows of a partitioned store (HierBatching, MariusGNN).

- `scheme`: `InsideWindows`, the strategies that do so, and what they are for a loader;
- `plan`: how large windows may be, what they need, and what a batch inside one costs;
- `feed`: what belongs to the windows of an epoch, and the stage that keeps it in memory.
"""
