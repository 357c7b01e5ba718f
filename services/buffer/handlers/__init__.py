"""What the buffer does on each request, one transaction each."""
