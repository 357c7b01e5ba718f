"""Clients of the services that an explorer calls."""
