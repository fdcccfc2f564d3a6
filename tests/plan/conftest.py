"""The loader tests' graph, for what is planned of it."""

from tests.loader.conftest import data, make, store

__all__ = ["data", "make", "store"]
