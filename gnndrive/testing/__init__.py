"""Fakes for tests: a simulated disk, a loop that finds deadlocks, rows that tell their node."""
