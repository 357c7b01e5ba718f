"""The buffer service: tasks, leases, experiences, batches, and records of checkpoints."""
