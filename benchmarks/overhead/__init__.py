"""The cost of the services: a GRPO step through them beside the same step without them."""
