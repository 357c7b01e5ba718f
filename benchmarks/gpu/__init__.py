"""Rollout, training and the way of weights between them, with the limits of the device."""
