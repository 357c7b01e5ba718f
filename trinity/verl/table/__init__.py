"""The table of keys, a file a section of veRL's configuration."""
