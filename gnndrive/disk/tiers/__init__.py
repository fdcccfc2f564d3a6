"""Tiers: they are what lies below the feature buffer, and bring the rows that it misses.

To add one, write one file here with a subclass of `Tier` (`base.py`) that has a `name` and a class
method `make(context: TierContext)`.
`tests/disk/tiers/test_conformance.py` holds every plug-in of the kind to its contract.
"""
