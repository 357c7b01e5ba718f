"""Helpers of several tiers of tests: stand-ins, recorders, and stacks that tests start."""
