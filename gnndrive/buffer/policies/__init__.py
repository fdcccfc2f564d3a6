"""Policies: which standby slots are reused first. One file each, found by its name."""
