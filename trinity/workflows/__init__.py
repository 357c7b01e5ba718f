"""Workflows, which call the model to make experiences; each has its own file."""

from trinity.workflows.task import Task
from trinity.workflows.workflow import Workflow

__all__ = ["Task", "Workflow"]
