"""Metrics of Trinity-RFT's import path; monitors are chosen in the configuration."""

from trinity.rft.import_hook import resolve
from trinity.rft.utils.metrics import gather_metrics

__all__ = ["gather_metrics"]


def __getattr__(name: str) -> object:
    return resolve(__name__, name)
