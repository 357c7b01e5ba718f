"""Import paths of Trinity-RFT, for files that were written for it."""
