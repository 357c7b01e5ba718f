"""Rollout engines: their interface, vLLM, models served elsewhere, and loading of weights."""
