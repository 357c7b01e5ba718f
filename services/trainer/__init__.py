"""The trainer service: improves the model from batches of experiences."""
