"""One rank of the gang: the process that trains."""
