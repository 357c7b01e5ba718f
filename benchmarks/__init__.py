"""One script a claim; each prints our figure beside the limit."""
