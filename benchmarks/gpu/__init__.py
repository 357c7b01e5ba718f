"""Rollout, training and the way of weights between them, beside the limits of the device."""
