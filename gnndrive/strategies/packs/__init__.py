"""Batches that are recorded once, packed on disk, and replayed (DiskGNN, SIGMOD 2025)."""
