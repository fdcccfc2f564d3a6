"""Batches that are sampled ahead, a superbatch at a time (Ginex, VLDB 2022, section 3)."""
