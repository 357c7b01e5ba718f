"""The bases of workflows with one call a step."""

from trinity.rft.import_hook import resolve
from trinity.workflows.step_wise import (
    AsyncRewardPropagationWorkflow,
    AsyncStepWiseRewardWorkflow,
    RewardPropagationWorkflow,
    StepWiseRewardWorkflow,
)

__all__ = [
    "AsyncRewardPropagationWorkflow",
    "AsyncStepWiseRewardWorkflow",
    "RewardPropagationWorkflow",
    "StepWiseRewardWorkflow",
]


def __getattr__(name: str) -> object:
    return resolve(__name__, name)
