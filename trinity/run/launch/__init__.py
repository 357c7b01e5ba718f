"""Launches an experiment on this machine and follows it to its end."""
