"""One command for a bare machine with a GPU: each promise that needs one, with its outcome."""
