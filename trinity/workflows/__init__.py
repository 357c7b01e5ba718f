"""What runs on the model to make experiences: one workflow a file."""
