"""Exports a run's metrics to TensorBoard, W&B or MLflow.

Monitors read the numbered events of the buffer from the first one, in a thread. So a slow server
does not hold up the run, and a step that arrives again after a crash is shown once.
"""
