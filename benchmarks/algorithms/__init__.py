"""Trains every algorithm from one warm start, on the addition model, in one process."""
