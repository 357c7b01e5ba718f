"""The sections of a configuration file."""
