"""Counts what the second implementations did, so that a test knows that it used them."""

from __future__ import annotations

from collections import Counter

used: Counter[str] = Counter()
"""By kind, how often its second implementation did its work. Threads may lose a count."""
