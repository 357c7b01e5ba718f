"""The cost of the services: a GRPO step through them over the same step without them."""
