"""Whole runs over the real services without a model."""
