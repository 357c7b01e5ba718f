"""Converts experiments written for veRL to configurations of this system and back."""
