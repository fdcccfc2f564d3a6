"""Stores in partitions (HierBatching, MariusGNN): nodes in groups of a small edge cut, each group
contiguous on disk, so that a window of some groups is loaded with a few long reads."""
