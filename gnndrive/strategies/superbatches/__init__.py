"""Batches that are sampled ahead, a superbatch at a time (Ginex, VLDB 2022, section 3).

- `scheme`: `SamplesAhead`, the strategies that do so: what they are for a loader, how many batches
  a superbatch has, and what memory and disk that takes;
- `feed`: the stages that sample superbatches and replay them.
"""
