"""Finds the commands that a bash script would start, without running anything."""
