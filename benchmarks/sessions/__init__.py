"""Costs of a stored turn of a session, and memory of sessions that are open."""
