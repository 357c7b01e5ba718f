"""The buffer's decisions as plain Python: no SQL, no broker, no RPC."""
