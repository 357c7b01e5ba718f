"""Registries by Trinity-RFT's import path."""

from trinity.plugins import Registry

__all__ = ["Registry"]
