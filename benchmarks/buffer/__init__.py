"""Measures how fast the buffer is, compared with its parts and its peers."""
