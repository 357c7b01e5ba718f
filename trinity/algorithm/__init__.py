"""What turns rewards into gradients: one algorithm a file."""
