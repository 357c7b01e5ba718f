"""Samples and rows in the forms that parts exchange."""
