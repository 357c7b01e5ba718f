"""Files of a stage: checkpoints, published weights and adapters."""
