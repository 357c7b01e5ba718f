"""What runs on the model to make experiences: one workflow a file."""

from trinity.workflows.task import Task
from trinity.workflows.workflow import Workflow

__all__ = ["Task", "Workflow"]
