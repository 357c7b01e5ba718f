"""Diagnosis of a stalled run: gathers a snapshot and applies rules to it."""
