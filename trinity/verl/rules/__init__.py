"""Rules that convert several related keys of veRL's together, one topic per file."""
