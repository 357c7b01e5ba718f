"""Loads a YAML file and overrides into a configuration, with the line of each key."""
