"""Samplers: seeds become a sample."""
