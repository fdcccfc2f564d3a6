"""Policies: which standby slots are reused first. One file each, found by its name.

`tests/buffer/policies/test_conformance.py` holds every plug-in of the kind to its contract.
"""
