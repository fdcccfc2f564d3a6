"""Topologies: adjacency for the samplers."""
