"""Where a run's figures go beside its directory's own files: TensorBoard, W&B, MLflow."""
