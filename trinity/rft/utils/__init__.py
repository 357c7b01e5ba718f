"""Import paths of Trinity-RFT's helpers, for files that were written for it."""
