"""Launch an experiment on this machine and follow it to its end."""
