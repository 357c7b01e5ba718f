"""Entropy losses by name: what is subtracted from the loss to keep the policy from narrowing."""
