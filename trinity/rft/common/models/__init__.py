"""The model that a workflow calls, by Trinity-RFT's import paths."""
