"""Tasksets: where their rows come from, and how they are processed and stored."""
