"""Errors that travel between the parts of the system.

TrinityError
├── UserError             a user's mistake; one sentence, exit code 2
├── RunFailed             the run ended without reaching its goal; exit code 1
│   └── ServiceNotReady              the services do not answer yet; exit code 3, try again later
├── RolloutStageFailed    the explorer cannot go on with its stage
├── ManifestError         files do not match their manifest
├── TransferFailed        weights were not sent between memories; files are read instead
└── RpcError              a service answered with an error
    ├── InvalidRequest        the request is malformed; do not retry
    │   └── TooLarge              a part of it exceeds the limit that the text names
    ├── NotFound              the requested object does not exist
    ├── PreconditionFailed    the state does not allow it; a person must change something
    ├── Superseded            a newer process has taken the caller's place; it must stop
    ├── Forbidden             the caller's token does not allow it; another token must be given
    ├── Unavailable           something the service needs does not answer; retry after a pause
    │   └── NotReady              it answers, and cannot do it yet
    └── Unauthenticated       the token is missing, expired or unknown; a kind of Unavailable, since
                              waiting callers continue with the token that replaces it
"""


class TrinityError(Exception):
    """Base of every error this project raises on purpose."""


class UserError(TrinityError):
    """A user's mistake: names the setting or file, where it is and what to do."""


class RunFailed(TrinityError):
    """The run started and could not end well; the text is the reason to show."""


class ServiceNotReady(RunFailed):
    """The request was not begun because the services do not answer yet; try again later."""


class RolloutStageFailed(TrinityError):
    """The explorer cannot go on with the stage; the text is shown to users."""


class ManifestError(TrinityError):
    """Files are missing, cut short or changed since their manifest was written."""


class TransferFailed(TrinityError):
    """Weights were not transferred from memory to memory; the same version is in files."""


class RpcError(TrinityError):
    """A service answered with an error; the text goes to the caller."""


class InvalidRequest(RpcError):
    """The request is malformed or contradicts itself; do not retry."""


class TooLarge(InvalidRequest):
    """Something in the request is larger than the limit that the text names."""


class QuotaExceeded(RpcError):
    """A tenant has as much of something as it may have, as the text names it; retry later."""


class NotFound(RpcError):
    """The requested object does not exist."""


class PreconditionFailed(RpcError):
    """The state does not allow the request; repeating it does not help."""


class Superseded(RpcError):
    """A newer incarnation has taken the caller's place; it must stop at once."""


class Forbidden(RpcError):
    """The caller's token does not allow it; the text does not reveal what exists."""


class Unavailable(RpcError):
    """A database or broker the service needs does not answer; retry after a pause."""


class NotReady(Unavailable):
    """It answers, and cannot do it yet; retry after a pause."""


class Unauthenticated(Unavailable):
    """The caller sent no token, or one that has expired or is unknown to the service."""
