"""Workflows by Trinity-RFT's import paths; further ones are loaded when they are asked for."""

from trinity.compat import resolve
from trinity.plugins import WORKFLOWS
from trinity.workflows.trinity_rft.task import Task
from trinity.workflows.trinity_rft.workflow import Workflow

__all__ = ["WORKFLOWS", "Task", "Workflow"]


def __getattr__(name: str) -> object:
    return resolve(__name__, name)
