"""The synchronizer's state in Postgres: every change is a transaction; there is no cache."""
