"""The plan that services act on, and its parts derived from a configuration."""
