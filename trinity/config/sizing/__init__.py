"""Estimates the size of a run: model, memory, placement on machines, steps and tokens."""
