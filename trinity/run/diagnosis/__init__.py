"""Diagnosis of a stalled run: gathers a snapshot and applies rules that use nothing else."""
