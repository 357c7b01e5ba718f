"""What a monitor has to do, and what it is given to begin with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from trinity.config.secret import hidden
from trinity.config.section import Args
from trinity.json_values import JsonValue
from trinity.monitors.names import RunNames
from trinity.monitors.points import Point


class Monitor(Protocol):
    """Shows points to people. Its calls block, and come one after the other from any thread.

    Whatever a call raises means that it is away: the same points come again, later. Points it has
    from before, this process or an earlier one, it leaves out.
    """

    def write(self, points: Sequence[Point]) -> None:
        """Take points, in the order of their events."""

    def close(self) -> None:
        """Write what is pending; nothing comes after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where and as what a monitor shows an experiment."""

    directory: Path
    """For files of its own."""
    names: RunNames
    arguments: Args = field(default_factory=dict)
    """The user's `monitor.monitor_args`."""
    configuration: Mapping[str, JsonValue] = field(default_factory=dict)
    """The experiment's, by stage, without secrets; to be shown beside the figures."""

    def argument(self, name: str) -> str:
        """One of the user's arguments, empty where it is not given."""
        return str(self.arguments.get(name) or "")

    def configuration_of(self, stage: str) -> JsonValue:
        """What acts in a stage, with secrets hidden."""
        found: JsonValue = hidden("", self.configuration.get(stage, {}))
        return found
