"""What scores a response: one reward a file."""
