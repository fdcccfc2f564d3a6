"""Sampling inside the windows of a partitioned store (HierBatching, MariusGNN).

- `scheme`: `InsideWindows`, the strategies that do so, how large their windows are, what a batch
  inside one costs, and what else they are for a loader;
- `plan`: what windows need;
- `feed`: what belongs to the windows of an epoch, and the stage that keeps it in memory.
"""
