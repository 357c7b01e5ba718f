"""Workflows, which call the model to make experiences; each has its own file."""

from trinity.plugins import WORKFLOWS
from trinity.workflows.task import Task
from trinity.workflows.workflow import Workflow

__all__ = ["WORKFLOWS", "Task", "Workflow"]
