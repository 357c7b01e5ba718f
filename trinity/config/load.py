"""Loads a configuration that a run can carry out in full from its YAML file."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import JsonValue

from trinity.config.reading import Reading, read_config
from trinity.config.root import Config
from trinity.errors import UserError


def load_config(path: str | Path, overrides: Mapping[str, JsonValue] | None = None) -> Config:
    """Returns the file's interpolated configuration; `overrides` go on top, by dotted key.

    load_config("gsm8k.yaml", {"buffer.total_steps": 10})

    Raises: UserError with a sentence for each error, or one for all planned keys.
    """
    return runnable(read_config(Path(path), overrides))


def runnable(reading: Reading) -> Config:
    """Returns the configuration if it has no errors and asks for nothing that is only planned."""
    if reading.mistakes:
        raise UserError("\n".join(reading.mistakes))
    assert reading.config is not None
    if reading.planned:
        asked = ", ".join(f"{notice.what} {notice.place}" for notice in reading.planned)
        raise UserError(
            f"{asked} {'is' if len(reading.planned) == 1 else 'are'} planned, not there yet: "
            f"remove, or see `trinity config check {reading.source.path}`"
        )
    return reading.config
