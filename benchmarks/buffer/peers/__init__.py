"""Systems that others use in the buffer's place; each script runs in an environment of its own."""
