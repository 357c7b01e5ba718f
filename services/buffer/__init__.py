"""The buffer service: which task is next, experiences, batches, checkpoints rows."""
