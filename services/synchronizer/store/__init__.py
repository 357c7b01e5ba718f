"""The synchronizer's state in Postgres: every change is a transaction, nothing is cached."""
