"""The explorer service: runs the model on tasks and scores the answers."""
