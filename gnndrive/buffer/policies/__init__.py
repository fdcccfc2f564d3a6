"""Policies: what leaves the feature buffer."""
