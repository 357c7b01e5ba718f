"""Workflows tried without a run: an engine that stays, and a workflow on a few tasks against it."""
