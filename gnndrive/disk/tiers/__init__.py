"""Tiers: what lies below the feature buffer."""
