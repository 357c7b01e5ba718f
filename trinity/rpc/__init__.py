"""gRPC as every service uses it: server, channels, health, errors."""
