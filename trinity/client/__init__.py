"""The SDK for programs that submit tasks to a buffer and manage them.

from trinity.client import Tasksets

with Tasksets("127.0.0.1:50051") as tasksets:
    submitted = tasksets.submit("sums", [{"prompt": "1+1=", "response": "2"}])
    print(submitted.num_stored, submitted.refused)
"""

from trinity.client.async_tasksets import AsyncTasksets
from trinity.client.results import (
    PipelineInfo,
    RejectedRow,
    SubmitResult,
    TasksetInfo,
    TasksetState,
)
from trinity.client.tasksets import Tasksets

__all__ = [
    "AsyncTasksets",
    "PipelineInfo",
    "RejectedRow",
    "SubmitResult",
    "TasksetInfo",
    "TasksetState",
    "Tasksets",
]
