"""The differences between two plans of a run, and the consequences for the run."""
