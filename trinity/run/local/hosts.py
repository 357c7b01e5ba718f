"""The machines of a stack: its launcher's alone, or others that it starts processes on as well."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from trinity.run.local.addresses import LOOPBACK


@dataclass(frozen=True, slots=True, kw_only=True)
class StackHosts:
    """The launcher's machine as others see it, and how a command is run on one of them."""

    own: str = LOOPBACK
    """The address that the broker and the services listen on."""
    certified: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Addresses beyond loopback of each part, for its certificate."""
    command_on: Callable[[str], Sequence[str]] = lambda _: ()
    """Returns the words before a command that run it on a node; its stdin and stdout are ours."""
