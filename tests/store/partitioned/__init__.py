"""Tests of partitioned folders."""
