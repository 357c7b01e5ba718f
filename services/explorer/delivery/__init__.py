"""Delivery of results to the buffer: outbox, publisher, commit reports."""
