"""The bases of workflows with one call a step."""

from trinity.compat import resolve
from trinity.workflows.trinity_rft.step_wise import (
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
