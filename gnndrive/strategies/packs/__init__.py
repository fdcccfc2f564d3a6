"""Batches that are recorded once, packed on disk, and replayed (DiskGNN, SIGMOD 2025).

- `pack`: `gnndrive.pack`, which records a loader's batches and packs their rows; `recording` draws
  them, `memory` says how many rows training will hold;
- `find`: the pack that a loader replays;
- `plan`: what replaying needs, and what a batch costs.
"""
