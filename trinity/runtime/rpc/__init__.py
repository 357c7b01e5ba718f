"""Shared gRPC parts of every service: server, channels, health, errors."""
