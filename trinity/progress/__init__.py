"""What a run shows and leaves: live progress, curves, summary, TensorBoard."""
