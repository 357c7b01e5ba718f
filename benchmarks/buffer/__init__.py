"""Measures how fast the buffer is, beside the speed of its parts and its peers."""
