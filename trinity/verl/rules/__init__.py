"""Rules that convert several related veRL keys together, one topic per file."""
