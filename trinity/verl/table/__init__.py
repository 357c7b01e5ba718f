"""The table of keys, one file per section of the veRL configuration."""
