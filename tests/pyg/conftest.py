"""The loader tests' graph, for what is joined with its samples."""

from tests.loader.conftest import data, make, store

__all__ = ["data", "make", "store"]
