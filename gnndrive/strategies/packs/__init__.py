"""Batches that are recorded once, packed on disk, and replayed (DiskGNN, SIGMOD 2025).

- `pack`: `gnndrive.pack`, which records a loader's batches and packs their rows; `recording` draws
  them;
- `plan`: how many rows training will hold, what replaying needs, and what a batch costs.
"""
