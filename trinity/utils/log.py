"""The logger of Trinity-RFT's import path."""

from trinity.compat import get_logger, resolve

__all__ = ["get_logger"]


def __getattr__(name: str) -> object:
    return resolve(__name__, name)
