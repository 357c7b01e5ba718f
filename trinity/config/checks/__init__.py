"""Checks of a plan before anything starts."""
