"""Sampling inside the windows of a partitioned store (HierBatching, MariusGNN)."""
