"""The rows of a micro-batch."""

from collections.abc import Sequence

Part = Sequence[int]
"""The row numbers of a micro-batch."""

Unit = Sequence[int]
"""Rows that are never separated: a single row, or the two of a pair."""
