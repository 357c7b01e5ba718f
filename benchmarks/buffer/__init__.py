"""How fast the buffer is, beside what its parts and its peers can do."""
