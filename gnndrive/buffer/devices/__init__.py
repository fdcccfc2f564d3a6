"""Devices: where the feature buffer lives."""
