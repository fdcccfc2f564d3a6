"""Schedules: which seeds come next, in windows."""
