"""Authorization: the scopes of tokens, and the one table of the scopes that each call accepts."""

from collections.abc import Mapping
from enum import StrEnum


class Scope(StrEnum):
    """A right that a token carries; a call accepts any one of the scopes in its line."""

    EXPLORER = "explorer"
    """An explorer's calls: leases, uploads, reports."""
    TRAINER = "trainer"
    """A trainer's calls: batches, steps, checkpoints, versions."""
    BUFFER = "buffer"
    """The buffer's calls to other services."""
    SUBMIT = "submit"
    """Submit work: experiments, tasksets, rewards that come later."""
    READ = "read"
    """Read everything, change nothing."""
    STEER = "steer"
    """Cancel, exclude, delete."""


_EXPLORER, _TRAINER, _BUFFER = Scope.EXPLORER, Scope.TRAINER, Scope.BUFFER
_SUBMIT, _READ, _STEER = Scope.SUBMIT, Scope.READ, Scope.STEER
_WORKERS = (_EXPLORER, _TRAINER)

_API = "trinity.api.v1"
_TABLE: Mapping[str, Mapping[str, tuple[Scope, ...]]] = {
    "SynchronizerService": {
        "CreateExperiment": (_SUBMIT,),
        "GetExperiment": (*_WORKERS, _READ),
        "WatchExperiments": (*_WORKERS, _READ),
        "WatchExperiment": (*_WORKERS, _READ),
        "PublishVersion": (_TRAINER,),
        "RetireVersions": (_TRAINER,),
        "Heartbeat": (*_WORKERS, _BUFFER),
        "FinishRole": _WORKERS,
        "FailStage": _WORKERS,
        "CancelExperiment": (_STEER,),
        "GetStatus": (*_WORKERS, _READ),
    },
    "BufferService": {
        "OpenStage": _WORKERS,
        "SubmitTaskset": (_SUBMIT,),
        "LeaseAssignments": (_EXPLORER,),
        "RenewLeases": (_EXPLORER,),
        "ReleaseLeases": (_EXPLORER,),
        "UploadBlob": (_EXPLORER,),
        "WatchCommits": (_EXPLORER,),
        "BeginIncarnation": (_TRAINER,),
        "RecordVersion": (_TRAINER,),
        "GetBatch": (_TRAINER,),
        "ReportStep": (_TRAINER,),
        "CommitCheckpoint": (_TRAINER,),
        "FinishTraining": (_TRAINER,),
        "CancelStage": (_STEER,),
        "WatchProgress": (_READ,),
        "GetBufferStatus": (_READ,),
    },
    "QueryService": {
        "ListStages": (_READ,),
        "ListExperiences": (_READ,),
        "GetExperience": (_READ,),
        "GetStep": (_READ,),
        "GetPopulation": (_READ,),
        "ExcludeExperiences": (_STEER,),
        "IncludeExperiences": (_STEER,),
        "DeleteExperiences": (_STEER,),
        "GiveFeedback": (_SUBMIT, _STEER),
    },
    "TasksetService": {
        "ListTasksets": (_READ,),
        "GetTaskset": (_READ,),
        "DeleteTaskset": (_STEER,),
        "CloseQueue": (_SUBMIT, _STEER),
    },
    "ExplorerService": {"GetExplorerStatus": (_READ,)},
    "TrainerService": {"GetTrainerStatus": (_READ,)},
}

SCOPES_OF_METHODS: Mapping[str, frozenset[Scope]] = {
    f"{_API}.{service}/{method}": frozenset(scopes)
    for service, methods in _TABLE.items()
    for method, scopes in methods.items()
}
"""Every call of the contracts by its full name. Calls that are missing here are refused."""

OPEN_METHODS = frozenset({"grpc.health.v1.Health/Check", "grpc.health.v1.Health/Watch"})
"""Health checks, which need a certificate but no token."""

WHOLE_PROCESS_METHODS = frozenset(
    {f"{_API}.ExplorerService/GetExplorerStatus", f"{_API}.TrainerService/GetTrainerStatus"}
)
"""Calls that report a whole process, of all tenants: a token for one tenant does not suffice."""

ROLE_SCOPES: Mapping[str, tuple[Scope, ...]] = {
    "synchronizer": (),
    "buffer": (_BUFFER,),
    "trainer": (_TRAINER,),
    "explorer": (_EXPLORER,),
    "operator": (_SUBMIT, _READ, _STEER),
}
"""The scopes in the token of each part of a system; the synchronizer makes no calls."""
