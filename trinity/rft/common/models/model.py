"""The model that a workflow calls."""

from trinity.rft.import_hook import resolve
from trinity.workflows.model import ModelWrapper

__all__ = ["ModelWrapper"]


def __getattr__(name: str) -> object:
    return resolve(__name__, name)
