"""Trinity Studio: runs, their experiences and new configurations in a browser."""
