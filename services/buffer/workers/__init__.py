"""Processes in which users' functions run."""
