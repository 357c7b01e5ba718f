"""What the services cost: a GRPO step through them beside the same step without them."""
