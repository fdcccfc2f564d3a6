"""Batches packed on disk (DiskGNN, SIGMOD 2025): recorded samples, and each row where it is
cheapest to read."""
