"""Ingest of results: from the stream into the database."""
