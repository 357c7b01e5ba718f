"""Exports a run's metrics, besides its directory's own files: TensorBoard, W&B, MLflow."""
