"""Errors that travel between the parts of the system.

TrinityError
├── UserError             a mistake of the person who runs it; one sentence, exit code 2
├── RunFailed             the run ended without reaching its goal; exit code 1
│   └── NotTaken              nobody answered who could begin it; exit code 3, ask again later
├── ManifestError         files do not match their manifest
├── TransferFailed        weights did not come from memory to memory; they are taken from files
└── RpcError              an answer of a service other than success
    ├── InvalidRequest        the request is malformed; do not retry
    │   └── TooLarge              something in it is larger than the limit that the text names
    ├── NotFound              what it names does not exist
    ├── PreconditionFailed    the state does not allow it; a person must change something
    ├── Superseded            another one has taken the caller's place; it must stop
    ├── Forbidden             the caller's token does not allow it; another token must be given
    ├── Unavailable           something the service needs does not answer; retry after a pause
    └── Unauthenticated       the token is missing, expired or unknown; a kind of Unavailable, as
                              whoever waits goes on with the token that replaces it
"""


class TrinityError(Exception):
    """Base of every error this project raises on purpose."""


class UserError(TrinityError):
    """A user's mistake: names the thing, where it stands and what to do."""


class RunFailed(TrinityError):
    """A run that started and could not end well; the text is the reason to show."""


class NotTaken(RunFailed):
    """What was asked for was not begun, as the services do not answer yet; ask again later."""


class ManifestError(TrinityError):
    """Files are missing, cut short or changed since their manifest was written."""


class TransferFailed(TrinityError):
    """Weights did not come from memory to memory; the same version is in files."""


class RpcError(TrinityError):
    """An answer of a service other than success; the text goes to the caller."""


class InvalidRequest(RpcError):
    """The request is malformed or contradicts itself; do not retry."""


class TooLarge(InvalidRequest):
    """Something in the request is larger than the limit that the text names."""


class NotFound(RpcError):
    """What the request names does not exist."""


class PreconditionFailed(RpcError):
    """The state does not allow what is asked; repeating it changes nothing."""


class Superseded(RpcError):
    """A newer incarnation has taken the caller's place; it must stop at once."""


class Forbidden(RpcError):
    """The caller's token does not allow it; what exists is not said."""


class Unavailable(RpcError):
    """A database or broker the service needs does not answer; retry after a pause."""


class Unauthenticated(Unavailable):
    """The caller shows no token, or one that has expired or is unknown here."""
