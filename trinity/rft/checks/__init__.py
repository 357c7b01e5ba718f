"""Checks of the workflows and rewards that a plan names, before anything is started."""
