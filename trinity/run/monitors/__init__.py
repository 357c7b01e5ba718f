"""Exports a run's metrics, besides its directory's own files: TensorBoard, W&B, MLflow.

Monitors read the numbered events of the buffer from the first one and in a thread. So a slow server
holds up nothing, and a step that arrives again after a crash is shown once.
"""
