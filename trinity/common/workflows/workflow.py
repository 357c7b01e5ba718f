"""The bases of workflows with one question or one transcript."""

from trinity.compat import resolve
from trinity.plugins import WORKFLOWS
from trinity.workflows.trinity_rft.task import Task
from trinity.workflows.trinity_rft.workflow import (
    AsyncMathWorkflow,
    AsyncSimpleWorkflow,
    BaseSimpleWorkflow,
    MathWorkflow,
    MultiTurnWorkflow,
    SimpleWorkflow,
    Workflow,
)

__all__ = [
    "WORKFLOWS",
    "AsyncMathWorkflow",
    "AsyncSimpleWorkflow",
    "BaseSimpleWorkflow",
    "MathWorkflow",
    "MultiTurnWorkflow",
    "SimpleWorkflow",
    "Task",
    "Workflow",
]


def __getattr__(name: str) -> object:
    return resolve(__name__, name)
