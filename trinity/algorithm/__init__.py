"""The algorithms, which turn rewards into gradients: one part per file."""
