"""Monitors in front of real stores."""
