"""The buffer's tables and the statements on them."""
