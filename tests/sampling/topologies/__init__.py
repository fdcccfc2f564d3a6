"""Tests of gnndrive/sampling/topologies and gnndrive/sampling/graph.py."""
