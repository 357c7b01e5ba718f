"""The logger of Trinity-RFT's import path."""

from trinity.plugins import get_logger
from trinity.rft.import_hook import resolve

__all__ = ["get_logger"]


def __getattr__(name: str) -> object:
    return resolve(__name__, name)
