"""Monitors: points, names, and what feeds them."""
