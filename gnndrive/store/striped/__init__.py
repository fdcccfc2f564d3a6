"""Rows of a store copied to several disks, so that loaders read them from all disks at once."""
