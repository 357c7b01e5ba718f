"""One script a claim; each prints our figure with its limit."""
