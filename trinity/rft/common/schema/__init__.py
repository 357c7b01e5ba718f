"""Tables with experiences, by Trinity-RFT's import paths."""
