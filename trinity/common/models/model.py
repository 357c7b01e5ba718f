"""The model that a workflow calls."""

from trinity.compat import resolve
from trinity.workflows.trinity_rft.model import ModelWrapper

__all__ = ["ModelWrapper"]


def __getattr__(name: str) -> object:
    return resolve(__name__, name)
