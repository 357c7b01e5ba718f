"""The synchronizer's state in Postgres: every change is one transaction, nothing is kept here."""
