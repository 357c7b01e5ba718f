"""The bases of workflows with one question or one transcript."""

from trinity.plugins import WORKFLOWS
from trinity.rft.import_hook import resolve
from trinity.rft.workflows.workflow import (
    AsyncMathWorkflow,
    AsyncSimpleWorkflow,
    BaseSimpleWorkflow,
    MathWorkflow,
    SimpleWorkflow,
)
from trinity.workflows.multi_turn import MultiTurnWorkflow
from trinity.workflows.task import Task
from trinity.workflows.workflow import Workflow

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
