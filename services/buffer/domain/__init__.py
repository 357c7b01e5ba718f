"""Decisions of the buffer as plain Python: no SQL, no message broker, no RPC."""
