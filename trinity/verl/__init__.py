"""Experiments written for veRL, turned into configurations of this system and back."""
