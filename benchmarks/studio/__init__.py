"""Benchmarks of Studio."""
