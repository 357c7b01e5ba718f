"""Data of train steps: batches, rows, and training data as tokens."""
