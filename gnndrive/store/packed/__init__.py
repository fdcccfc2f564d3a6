"""Batches packed on disk: a derived layout of a store (DiskGNN, SIGMOD 2025)."""
