"""Layouts: where rows lie on disk."""
