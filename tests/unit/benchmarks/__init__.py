"""Tests of benchmarks: how they judge."""
