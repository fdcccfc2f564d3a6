"""Fixtures of the loader tests, for tests that plan loaders over their graph."""

from tests.loader.conftest import data, make, store

__all__ = ["data", "make", "store"]
