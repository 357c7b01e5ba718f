"""The table of keys, one file per section of veRL's configuration."""
