"""Runs the whole system on one machine: broker, database and the four services as processes."""
