"""Tests, by how much of the system they start."""
