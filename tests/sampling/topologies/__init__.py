"""Tests of where the adjacency is: gnndrive/topologies and gnndrive/sampling/graph.py."""
