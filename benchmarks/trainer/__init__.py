"""Benchmarks of training alone."""
