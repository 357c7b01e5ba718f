"""What every algorithm learns from one warm start, on the addition model, in one process."""
