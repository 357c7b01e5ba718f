"""Starts experiments, here or on services, and follows them."""
