"""Workflows by Trinity-RFT's import paths; further ones are loaded on access."""

from trinity.plugins import WORKFLOWS
from trinity.rft.import_hook import resolve
from trinity.workflows.task import Task
from trinity.workflows.workflow import Workflow

__all__ = ["WORKFLOWS", "Task", "Workflow"]


def __getattr__(name: str) -> object:
    return resolve(__name__, name)
