"""Authorization: the scopes of tokens, and the one table of the scopes that each call accepts."""

from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, TypeAlias

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

_API = "trinity.api.v1"
OPEN_METHODS = frozenset({"grpc.health.v1.Health/Check", "grpc.health.v1.Health/Watch"})
"""Health checks, which need a certificate but no token."""
REFLECTION_SERVICES = (
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
)
WHOLE_PROCESS_METHODS = frozenset(
    {f"{_API}.ExplorerService/GetExplorerStatus", f"{_API}.TrainerService/GetTrainerStatus"}
)
"""Calls that report a whole process, of all tenants: a token for one tenant does not suffice."""
TENANT = "tenant"
EXPERIMENT = "experiment_id"
Path: TypeAlias = tuple[str, ...]
ROLE = "role"
_PREFIX = "ROLE_"
EVERY_TENANT = "*"
"""The tenant of a token that is valid for all tenants."""


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

_TABLE: Mapping[str, Mapping[str, tuple[Scope, ...]]] = {
    "SynchronizerService": {
        "CreateExperiment": (_SUBMIT,),
        "GetExperiment": (*_WORKERS, _READ),
        "WatchExperiments": (*_WORKERS, _READ),
        "WatchExperiment": (*_WORKERS, _READ),
        "PublishVersion": (_TRAINER,),
        "RetireVersions": (_TRAINER,),
        "ReportDamage": (_EXPLORER,),
        "Heartbeat": (*_WORKERS, _BUFFER),
        "RecordTurn": _WORKERS,
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
        "GetTurns": (_EXPLORER,),
        "OpenSession": (_EXPLORER,),
        "RewardCalls": (_EXPLORER,),
        "CommitSession": (_EXPLORER,),
        "UploadBlob": (_EXPLORER,),
        "ReadMedia": (_EXPLORER, _TRAINER, _READ),
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
        "GetSession": (_READ,),
        "GetStep": (_READ,),
        "GetPopulation": (_READ,),
        "ListTaskScores": (_READ,),
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
    "ExplorerService": {"GetExplorerStatus": (_READ,), "JoinEngine": (_EXPLORER,)},
    "TrainerService": {
        "GetTrainerStatus": (_READ,),
        "StopTraining": (_STEER,),
        "JoinGang": (_TRAINER,),
    },
}

SCOPES_OF_METHODS: Mapping[str, frozenset[Scope]] = {
    f"{_API}.{service}/{method}": frozenset(scopes)
    for service, methods in _TABLE.items()
    for method, scopes in methods.items()
}
"""Every call of the contracts by its full name."""


def scopes_of(method: str) -> frozenset[Scope]:
    """Returns the scopes that a call accepts; none for an unknown one."""
    if method.startswith(REFLECTION_SERVICES):
        return frozenset({_READ})
    return SCOPES_OF_METHODS.get(method, frozenset())


ROLE_SCOPES: Mapping[str, tuple[Scope, ...]] = {
    "synchronizer": (),
    "buffer": (_BUFFER,),
    "trainer": (_TRAINER,),
    "explorer": (_EXPLORER,),
    "operator": (_SUBMIT, _READ, _STEER),
    "studio": (),
}
"""The scopes in the token of each part of a system; the synchronizer makes no calls, and Studio's
are made with the tokens of its visitors."""


def tenants_of(request: Message) -> list[str] | None:
    """Returns every tenant in the request, empty names too; None if its type has no such field."""
    paths = field_paths(request.DESCRIPTOR, TENANT)
    return [value for path in paths for value in field_values(request, path)] if paths else None


def experiments_of(request: Message) -> list[str]:
    """Returns every experiment in the request."""
    paths = field_paths(request.DESCRIPTOR, EXPERIMENT)
    return [value for path in paths for value in field_values(request, path) if value]


@cache
def field_paths(message: Descriptor, name: str) -> tuple[Path, ...]:
    """Returns the paths to fields of this name in a message and its parts."""
    return tuple(_paths(message, name, ()))


def _paths(message: Descriptor, name: str, above: tuple[Descriptor, ...]) -> Iterator[Path]:
    if message in above:
        return
    for field in message.fields:
        if field.name == name:
            yield (name,)
        elif field.message_type is not None:
            for path in _paths(field.message_type, name, (*above, message)):
                yield (field.name, *path)


def field_values(message: Message, path: Path) -> Iterator[Any]:
    """Yields the values at the path; unset parts count as empty text or zero."""
    value = getattr(message, path[0])
    if len(path) == 1:
        yield value
        return
    for part in [value] if isinstance(value, Message) else value:
        yield from field_values(part, path[1:])


def roles_of(request: Message) -> set[Scope]:
    """Returns the roles that the request names; a token for it must carry each as a scope.

    An unknown number counts as no role: the service refuses the request.
    """
    found: set[Scope] = set()
    for path in field_paths(request.DESCRIPTOR, ROLE):
        known = _roles_at(request.DESCRIPTOR, path)
        found |= {known[number] for number in field_values(request, path) if number in known}
    return found


@cache
def _roles_at(message: Descriptor, path: Path) -> dict[int, Scope]:
    """Returns the numbers of the enumeration at the path, without the unspecified one."""
    for name in path[:-1]:
        part = message.fields_by_name[name].message_type
        assert part is not None, "a path leads through messages"
        message = part
    roles = message.fields_by_name[path[-1]].enum_type
    assert roles is not None, f"{message.full_name}: a field called `{ROLE}` is of the type Role"
    known = roles.values
    return {
        value.number: Scope(value.name.removeprefix(_PREFIX).lower())
        for value in known
        if value.number
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The identity that a valid token gives its bearer."""

    subject: str
    tenant: str
    scopes: frozenset[Scope]
    expires_at: float
    """Seconds since 1970."""

    @property
    def is_bound(self) -> bool:
        """True if the caller is limited to one tenant."""
        return self.tenant != EVERY_TENANT

    @property
    def bound_tenant(self) -> str:
        """The one tenant, or an empty text for all of them."""
        return self.tenant if self.is_bound else ""


LOCAL_CALLER = Caller(
    subject="local", tenant=EVERY_TENANT, scopes=frozenset(Scope), expires_at=float("inf")
)
"""The caller where tokens are not required, which is on loopback only."""

_current: ContextVar[Caller] = ContextVar("caller", default=LOCAL_CALLER)


def current_caller() -> Caller:
    """Returns the caller of the request that the running task answers."""
    return _current.get()


def set_caller(caller: Caller) -> None:
    """Sets the caller, after its token was checked, in the task of the call."""
    _current.set(caller)
