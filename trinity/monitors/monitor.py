"""The interface of a monitor, and its configuration."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from trinity.config.schema.base import Args, hidden
from trinity.json_values import JsonValue
from trinity.monitors.names import RunNames
from trinity.monitors.points import Point


class Monitor(Protocol):
    """Shows points to people. Its calls block, and are made one at a time from any thread.

    Any exception means that the monitor is unavailable: the same points are sent again later. It
    skips points that it already has, from this process or an earlier one.
    """

    def write(self, points: Sequence[Point]) -> None:
        """Writes points, in the order of their events."""

    def close(self) -> None:
        """Writes what is pending; nothing comes after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The configuration of a monitor for an experiment."""

    directory: Path
    """Directory for its own files."""
    names: RunNames
    arguments: Args = field(default_factory=dict)
    """The user's `monitor.monitor_args`."""
    configuration: Mapping[str, JsonValue] = field(default_factory=dict)
    """The experiment's configuration by stage, without secrets, to show beside the metrics."""

    def argument(self, name: str) -> str:
        """Returns one of the user's arguments, or an empty text."""
        return str(self.arguments.get(name) or "")

    def configuration_of(self, stage: str) -> JsonValue:
        """Returns the configuration of a stage, with secrets hidden."""
        found: JsonValue = hidden("", self.configuration.get(stage, {}))
        return found
