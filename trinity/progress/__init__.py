"""Output of a run: live progress, curves, summary, TensorBoard."""
