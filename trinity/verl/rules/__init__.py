"""What several keys of veRL's say together, a rule a file."""
